# Each target sets up what it needs: the virtual environment is made once, and again when the pins change.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
BIN := $(VENV)/bin

.PHONY: demo test lint style format browser mutants fuzz clean

demo: $(READY)
	$(BIN)/vitreous train digits --out runs/digits
	$(BIN)/vitreous inspect tiny $(VENV)/lib/python3*/site-packages/sklearn/datasets/images/*.jpg --out runs/tiny

# Types are checked while the tests run, which often wait; what pyright says comes after them. Compiled code is
# kept, whatever the environment says, Python's and that of torch.compile, whose first use of a folder takes 9 s:
# the tests start hundreds of processes. Three workers on two cores: a third of them wait for such a process at
# any time.
test: style browser
	@$(BIN)/pyright > $(VENV)/pyright.log 2>&1 & types=$$!; trap 'kill $$types 2>/dev/null' INT TERM; \
	PYTHONDONTWRITEBYTECODE= TORCHINDUCTOR_CACHE_DIR=$(CURDIR)/$(VENV)/compiled OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 3 --dist worksteal; tests=$$?; \
	wait $$types; types=$$?; cat $(VENV)/pyright.log; [ $$tests = 0 ] && [ $$types = 0 ]

lint: style
	$(BIN)/pyright

style: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Browser tests need Chromium: installed where that is allowed, else they skip, and this line says so.
browser:
	@command -v chromium >/dev/null 2>&1 \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 \
	       && apt-get update -qq && apt-get install -y -qq chromium >/dev/null 2>&1; } \
	  || echo "Chromium is not here and can't be installed: the browser tests will be SKIPPED"

# Changes one line of the code at a time and sees whether a test notices: a seeded sample of N mutants.
N ?= 150
mutants: $(READY)
	$(BIN)/python -m tests.mutants -n $(N) $(if $(ONLY),--only $(ONLY)) $(if $(SEED),--seed $(SEED))

# Tries N hostile inputs of each kind, each with bounds on time and memory: minutes.
fuzz: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.hostile.fuzz $(if $(filter file,$(origin N)),,-n $(N)) \
	  $(if $(ONLY),--only "$(ONLY)") $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES))

clean:
	rm -rf $(VENV) build dist

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "vitreous needs Python 3.11 or newer: make PYTHON=python3.12")'
	@echo "Setting up $(VENV): a few minutes the first time"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $(READY)
