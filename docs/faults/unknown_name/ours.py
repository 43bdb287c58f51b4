from mdispatch import torch_compat

print(torch_compat._dispatch_kernel_for_dispatch_key_is_fallthrough("shop::nothing", "CPU"))
