# Which lines and branches of core/ the C tests run, refusals and the fuzzers' kept inputs included:
# `make coverage`. Fails under 100 %. Without optimisation, so that the branches are those of the source; gcc only. test_hammer is
# left out: it runs nothing that others do not, and its threads would fight for the counters. Only of
# deaths at every instruction a sample is enough.
COVERED = build-coverage
COVERED_OBJECTS = $(patsubst core/%.c,$(COVERED)/core/%.o,$(CORE))
COVERED_TESTS = $(patsubst tests/%.c,$(COVERED)/%,$(filter-out %_hammer.c,$(wildcard tests/test_*.c)))
COUNTED = --coverage -Wl,-T,coverage/counters.ld
PLAIN = gcc $(WARN) -O1 -g -D_GNU_SOURCE

$(COVERED)/core/%.o: core/%.c $(HEADERS)
	@mkdir -p $(@D)
	gcc $(WARN) -O0 -g -D_GNU_SOURCE -fPIC -fdata-sections --coverage -fprofile-update=atomic \
		-c -o $@ $<

$(COVERED)/share.o: coverage/share.c
	@mkdir -p $(@D)
	$(PLAIN) -fPIC -c -o $@ $<

$(COVERED)/%.o: tests/%.c $(wildcard tests/*.h) $(HEADERS)
	@mkdir -p $(@D)
	$(PLAIN) -c -o $@ $<

.SECONDARY:
$(COVERED)/test_%: $(COVERED)/test_%.o $(COVERED_OBJECTS) $(COVERED)/share.o coverage/counters.ld
	gcc -o $@ $< $(COVERED_OBJECTS) $(COVERED)/share.o $(COUNTED) -pthread

# What test_load loads is not counted.
$(COVERED)/libs: $(LIBS)
	rm -rf $@
	cp -r $(BUILD)/libs $@

COVERED_REPLAYS = $(COVERED)/replay_region $(COVERED)/replay_contract
$(COVERED)/fuzz/%.o: fuzz/%.c $(wildcard fuzz/*.h) $(HEADERS)
	@mkdir -p $(@D)
	$(PLAIN) -c -o $@ $<

$(COVERED_REPLAYS): $(COVERED)/replay_%: $(COVERED)/fuzz/fuzz_%.o $(COVERED)/fuzz/replay.o \
		$(COVERED_OBJECTS) $(COVERED)/share.o coverage/counters.ld
	gcc -o $@ $(filter %.o,$^) $(COUNTED) -pthread

$(COVERED)/shim.so: refusals/shim.c refusals/shim.h
	@mkdir -p $(@D)
	$(PLAIN) -fPIC -shared -o $@ $< -ldl

$(COVERED)/libmdispatch.so.1: $(COVERED_OBJECTS) $(COVERED)/share.o coverage/counters.ld
	gcc -shared -Wl,-soname,libmdispatch.so.1 -o $@ $(COVERED_OBJECTS) $(COVERED)/share.o \
		$(COUNTED) -pthread

$(COVERED)/refusals: refusals/run.c $(wildcard refusals/*.h) tests/test.h \
		$(COVERED)/libmdispatch.so.1
	$(PLAIN) -o $@ $< $(COVERED)/libmdispatch.so.1 -Wl,-rpath,'$$ORIGIN' -pthread -ldl

.PHONY: coverage
coverage: $(COVERED_TESTS) $(COVERED_REPLAYS) $(COVERED)/refusals $(COVERED)/shim.so $(COVERED)/libs
	rm -f $(COVERED)/core/*/*.gcda
	@set -e; for t in $(COVERED_TESTS); do echo "== $$t"; all=1; case $$t in *crash_points) all=; esac; \
		MD_ALL=$$all MD_ROUNDS=1 timeout $(call limit,900) $$t >$$t.log || { cat $$t.log; exit 1; }; done
	@set -e; for n in region contract; do echo "== $(COVERED)/replay_$$n"; \
		timeout $(call limit,900) $(COVERED)/replay_$$n fuzz/corpus/$$n-found.txt fuzz/corpus/$$n.txt; done
	LD_PRELOAD=$(COVERED)/shim.so timeout $(call limit,900) $(COVERED)/refusals --long >$(COVERED)/refusals.log || \
		{ cat $(COVERED)/refusals.log; exit 1; }
	$(PYTHON) coverage/report.py $(COVERED)/core
