# The front door. Everything real happens in CMake, tools/ and tests/; `make help` lists what there is.
PREFIX  ?= /usr/local
DESTDIR ?=
QUERN    = build/release/quern
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: help build serve test bench soak goldens lint format install clean

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /make \1\t/p' Makefile | expand -t 16

build: ## set up and build the release binary
	@tools/setup.sh build
	@cmake --preset release >/dev/null
	@cmake --build --preset release --target quern quern_made

serve: build ## set up, build, get the default model, serve it with the web page on 127.0.0.1:8000
	@$(QUERN) pull >/dev/null || echo "The default model could not be fetched; a tiny one takes its place."
	@exec $(QUERN) serve

test: ## set up, build every configuration, run every test
	@tools/setup.sh test
	@.venv/bin/python tools/test.py

bench: build ## measure against the peers; prints the tables of docs/benchmarks.md
	@tools/setup.sh test
	@cmake --build --preset release
	@bench/run

soak: ## long fuzz runs (SOAK_SECONDS each), 20,000 simulated hours (SOAK_HOURS), bad clients (SOAK_MINUTES)
	@tools/setup.sh test
	@.venv/bin/python tools/test.py --only sim --sim-hours $(or $(SOAK_HOURS),20000) --sim-seed $$(date +%s) \
		--only fuzz --fuzz-seconds $(or $(SOAK_SECONDS),600) --fuzz-seed $$(date +%s)
	@cmake --preset release >/dev/null
	@cmake --build --preset release --target quern quern_load
	@.venv/bin/python bench/soak.py --minutes $(or $(SOAK_MINUTES),30)

goldens: build ## recompute tests/golden with llama.cpp and transformers (slow), then check in full
	@tools/setup.sh test
	@cmake --build --preset release
	@tools/goldens.sh

lint: ## clang-format, clang-tidy, cppcheck, tidy
	@tools/setup.sh test
	@tools/lint.sh

format: ## rewrite the C files in the house style
	@git ls-files '*.c' '*.h' '*.cu' '*.cuh' ':!src/text/unicode_new.h' | xargs clang-format -i

install: build ## install under $(DESTDIR)$(PREFIX): binary, man page, completions
	@DESTDIR="$(DESTDIR)" cmake --install build/release --prefix "$(PREFIX)" --strip

clean: ## remove build products (not the model cache)
	@rm -rf build
