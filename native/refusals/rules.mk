# `make refusals` makes every allocation and every system call fail once, in turn, in each of the
# ways in which it can. With REFUSALS=--long later calls of its name fail, too. See refusals/run.c.
REFUSALS ?=

$(BUILD)/shim.so: refusals/shim.c refusals/shim.h
	@mkdir -p $(BUILD)
	$(CC) $(WARN) $(OPT) -D_GNU_SOURCE -fPIC -shared -o $@ $< -ldl

$(BUILD)/libmdispatch.so.1: $(CORE) $(HEADERS)
	@mkdir -p $(BUILD)
	$(CC) $(WARN) $(OPT) -D_GNU_SOURCE -fPIC -shared -Wl,-soname,libmdispatch.so.1 -o $@ $(CORE) \
		-pthread

$(BUILD)/refusals: refusals/run.c $(wildcard refusals/*.h) tests/test.h $(BUILD)/libmdispatch.so.1
	$(CC) $(WARN) $(OPT) -D_GNU_SOURCE -o $@ $< $(BUILD)/libmdispatch.so.1 -Wl,-rpath,'$$ORIGIN' \
		-pthread -ldl

# A call that is new in the library must be listed, with what becomes of it.
.PHONY: refusals
refusals: $(BUILD)/refusals $(BUILD)/shim.so $(BUILD)/libs/good.so
	nm -D --undefined-only $(BUILD)/libmdispatch.so.1 | sh refusals/listed.sh refusals/calls.txt
	LD_PRELOAD=$(BUILD)/shim.so timeout $(call limit,900) $(BUILD)/refusals $(REFUSALS)
