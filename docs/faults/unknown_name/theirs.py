import torch

print(torch._C._dispatch_kernel_for_dispatch_key_is_fallthrough("shop::nothing", "CPU"))
