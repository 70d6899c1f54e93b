# Everything a newcomer needs: `make demo`, `make test`. Each target sets up what it needs.
# The first Python of 3.11 or newer that runs and can make virtual environments; PYTHON=... chooses another.
CANDIDATES := python3.11 python3.12 python3.13 python3.14 python3 python
USABLE     := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
PYTHON     ?= $(shell for name in $(CANDIDATES); do "$$name" -c "$(USABLE)" 2>/dev/null && echo "$$name" && break; done)

VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DEV    := $(VENV)/.installed-dev

# The first Python whose torch sees a GPU. Nothing is installed for it: such machines have theirs.
SEES_GPU   := import sys, torch, triton; sys.exit(not torch.cuda.is_available())
GPU_PYTHON ?= $(shell for name in $(BIN)/python python3 $(CANDIDATES); do "$$name" -c "$(SEES_GPU)" 2>/dev/null && echo "$$name" && break; done)

.PHONY: help demo test test-fast test-thorough test-images lint types sbom proto bench bench-acceptance bench-gpu chaos simulate soak clean

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# torch first and by exact version, so that a CPU build wins if pip is given an index that has one.
$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || "$(PYTHON)" -c "$(USABLE)" 2>/dev/null || \
		{ echo "needs Python 3.11 or newer with the modules venv and ensurepip (tried" \
		       "$(or $(PYTHON),$(CANDIDATES))): install one, or set PYTHON=/path/to/python"; exit 2; } >&2
	test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --config-settings editable_mode=compat --editable ".[local]"
	@touch $@

# What tests and checks need in addition: browsers, helm, compilers of kernels for GPUs.
$(DEV): $(STAMP)
	$(BIN)/pip install --quiet --constraint constraints.txt --config-settings editable_mode=compat --editable ".[local,dev]"
	@touch $@

demo: $(STAMP)  ## Start the whole system, stream answers, compare the modes (DEMO=flags of `specinfer demo`)
	$(BIN)/specinfer demo $(DEMO)

# One worker more than processors: tests wait (for leases, for processes to start) for a quarter of their time.
WORKERS ?= $(shell expr $$(nproc) + 1)
test: $(DEV)  ## The whole test suite
	$(BIN)/specinfer models pull smollm2-135m
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-fast: $(DEV)  ## Without the tests that need the default model
	$(BIN)/python -m pytest -m "not slow"

test-thorough: $(DEV)  ## The whole test suite, with many more examples and every family and kernel (half an hour)
	SPECINFER_TEST_THOROUGH=1 $(MAKE) test

test-images: $(DEV)  ## Build the images and run them (minutes, 15 GB for a while; root, buildah, mmdebstrap)
	SPECINFER_TEST_IMAGES=1 $(BIN)/python -m pytest tests/deploy/images/test_images.py tests/unit/model/native/test_variants.py

lint: $(DEV)  ## ruff: rules and format; spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell

types: $(DEV)  ## mypy, strict
	$(BIN)/mypy

# In an environment of its own: it would bring a dozen packages that nothing else here needs.
SBOM := .venv-sbom
sbom: $(STAMP)  ## Bill of materials of what is installed (CycloneDX) -> dist/specinfer.cdx.json
	test -x $(SBOM)/bin/cyclonedx-py || { $(BIN)/python -m venv $(SBOM) && $(SBOM)/bin/pip install --quiet cyclonedx-bom==7.5.0; }
	mkdir -p dist
	$(SBOM)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --output-file dist/specinfer.cdx.json $(BIN)/python

bench: $(STAMP)  ## Trees, plain decoding and other servers over HTTP -> benchmarks/results/pair.md (BENCH=its flags)
	$(BIN)/specinfer models pull qwen2.5-coder-1.5b
	$(BIN)/specinfer models pull qwen2.5-coder-0.5b
	$(BIN)/python -m benchmarks pair $(BENCH)

bench-acceptance: $(DEV)  ## Drafts and what they bring -> benchmarks/results/{acceptance,methods,speed}.md
	$(BIN)/specinfer models pull smollm2-135m
	$(BIN)/python -m benchmarks paper
	$(BIN)/python -m benchmarks methods
	$(BIN)/python -m benchmarks speed --weights bf16

bench-gpu:  ## On a GPU, in 8 minutes: tests, services, kernels, passes -> benchmarks/results/gpu.md (GPU_PYTHON=...)
	"$(or $(GPU_PYTHON),python3)" -m benchmarks.gpu

CHAOS_FAULTS ?= 100
CHAOS_SEED   ?=
chaos: $(DEV)  ## Kill, stop and cut off services while clients check every token (CHAOS_FAULTS=N, CHAOS_SEED=S)
	$(BIN)/python -m tests.chaos --faults $(CHAOS_FAULTS) $(if $(CHAOS_SEED),--seed $(CHAOS_SEED))

SEEDS ?= 1000
simulate: $(DEV)  ## The real services in seeded worlds with virtual time and faults (SEEDS=N; SEED=n shows one)
	PYTHONHASHSEED=0 $(BIN)/python -m tests.simulation --seeds $(SEEDS) $(if $(SEED),--seed $(SEED))

SOAK_MODEL   ?= smollm2-135m
SOAK_MINUTES ?= 60
soak: $(DEV)  ## Agents' conversations with `serve`: no answer without an end, no 500 (SOAK_MODEL=FILE.gguf, SOAK_MINUTES=N)
	$(BIN)/python -m tests.soak --model $(SOAK_MODEL) --minutes $(SOAK_MINUTES)

proto: $(DEV)  ## Regenerate specinfer/v1 from proto/
	$(BIN)/python proto/generate.py

clean:  ## Remove the virtual environment
	rm -rf $(VENV)
