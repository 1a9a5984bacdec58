# Works with GNU make 3.81 and BSD tools (macOS), needs Python >= 3.11, and no root.

PYTHON =
DEMO_ARGS =
BENCH_ARGS =
FAULTS = 60
SEED =
DOCUMENTS = 2000
CHAOS_ARGS =
PYTEST_ARGS =
WORKERS = 3

HIGHEST = constraints/airflow-3.3.txt
LOWEST = constraints/airflow-3.1.txt

.PHONY: help demo test test-lowest bench chaos chaos-short chaos-selftest screenshots lint audit format constraints clean

help:
	@echo 'make demo          a month of bank statements on a real Airflow, disturbed on purpose (DEMO_ARGS=--exit)'
	@echo 'make test          the whole test suite (PYTEST_ARGS="-k lease -x")'
	@echo 'make test-lowest   unit, contract and integration tests on the lowest Airflow and dependencies'
	@echo 'make bench         the measurements of docs/ (BENCH_ARGS)'
	@echo 'make chaos         real parts, killed, paused and cut off, and a referee (FAULTS=60 SEED=1 DOCUMENTS=2000)'
	@echo 'make chaos-short   the same in some minutes: 30 faults, most kinds once (SEED=1)'
	@echo 'make chaos-selftest  breaks the package on purpose: the referee must see it'
	@echo 'make screenshots   the pictures of docs/images/, in an installed Chromium'
	@echo 'make lint          ruff, mypy, import-linter'
	@echo 'make audit         the installed dependencies fit together (AUDIT=pip-audit looks for known holes as well)'
	@echo 'make format        let ruff format the code'
	@echo 'make constraints   resolve the pinned dependencies again'
	@echo 'make clean         remove what these made'
	@echo
	@echo 'PYTHON=python3.12 chooses the Python of a new .venv.'

demo: .venv/.demo
	@.venv/bin/python -m demo $(DEMO_ARGS)

# In the order of their names: the slow ones (approaches, chaos) come first, thousands of quick ones fill the end.
IN_PARALLEL = -n $(WORKERS) --dist loadfile --no-loadscope-reorder
SYSTEM_LOG = .test-system.log

# The system tests mostly wait (for heartbeats, timeouts, the scheduler's next look), so they run beside the others;
# after them those of the pages, which wait for a browser.
# Code 5 is pytest's word for "PYTEST_ARGS selects none of these".
test: .venv/.test
	@echo 'tests/system and those of tests/ui that need a browser run beside the others and are shown at the end ($(SYSTEM_LOG))'
	@.venv/bin/python -m pytest tests/system tests/ui --ignore tests/ui/forms $(PYTEST_ARGS) > $(SYSTEM_LOG) 2>&1 & system=$$!; \
	trap 'kill $$system; exit 130' INT TERM; \
	.venv/bin/python -m pytest $(IN_PARALLEL) --ignore tests/system --ignore-glob '$(CURDIR)/tests/ui/test_*' $(PYTEST_ARGS); others=$$?; \
	wait $$system; system=$$?; \
	cat $(SYSTEM_LOG); \
	for code in $$others $$system; do case $$code in 0|5) ;; *) exit $$code;; esac; done

# One version of PostgreSQL is enough here: `make test` has met both.
test-lowest: .venv-lowest/.test
	GUARD_TEST_ONE_POSTGRES=1 .venv-lowest/bin/python -m pytest $(IN_PARALLEL) tests/unit tests/contract tests/integration $(PYTEST_ARGS)

screenshots: .venv/.test
	.venv/bin/python -m tests.ui.screenshots

bench: .venv/.bench
	.venv/bin/python -m benchmarks $(BENCH_ARGS)

chaos: .venv/.chaos
	@.venv/bin/python -m chaos --faults $(FAULTS) $(if $(SEED),--seed $(SEED)) --documents $(DOCUMENTS) $(CHAOS_ARGS)

chaos-short: .venv/.chaos
	@.venv/bin/python -m chaos --faults 30 --seed $(or $(SEED),1) --documents 240 --fault-time 240 --quiet-time 240 $(CHAOS_ARGS)

chaos-selftest: .venv/.chaos
	@.venv/bin/python -m chaos.selftest

lint: .venv/.test
	.venv/bin/python -m ruff check .
	.venv/bin/python -m ruff format --check .
	.venv/bin/python -m mypy
	.venv/bin/lint-imports

# Without a network: what is installed is what is pinned, and its parts fit together. Known holes are in databases
# behind a network: AUDIT names a tool that reads a list of requirements, such as pip-audit.
AUDIT =

audit: .venv/.test
	.venv/bin/uv pip check --python .venv/bin/python
	@if [ -n '$(AUDIT)' ]; then $(AUDIT) --no-deps -r $(HIGHEST); \
	else echo 'Known holes were not looked for: that needs a network, and a tool (make audit AUDIT=pip-audit).'; fi

format: .venv/.test
	.venv/bin/python -m ruff check --fix .
	.venv/bin/python -m ruff format .

# --- environments -------------------------------------------------------------------------------------
# A stamp says what is installed, so that a second `make test` installs nothing.

.venv/.made:
	$(call make_venv,.venv,$(HIGHEST))

.venv-lowest/.made:
	$(call make_venv,.venv-lowest,$(LOWEST))

.venv/.chaos: .venv/.made pyproject.toml $(HIGHEST)
	$(call install,.venv,$(HIGHEST),chaos)

.venv/.demo: .venv/.made pyproject.toml $(HIGHEST)
	$(call install,.venv,$(HIGHEST),demo)

.venv/.test: .venv/.made pyproject.toml $(HIGHEST)
	$(call install,.venv,$(HIGHEST),test)

.venv/.bench: .venv/.test
	$(call install,.venv,$(HIGHEST),bench)

.venv-lowest/.test: .venv-lowest/.made pyproject.toml $(LOWEST)
	$(call install,.venv-lowest,$(LOWEST),test)

# $(1) folder, $(2) constraints. Takes the first Python that is new enough.
define make_venv
	@for python in $(if $(PYTHON),$(PYTHON),python3 python3.13 python3.12 python3.11); do \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "$(1): $$("$$python" --version) ($$python)"; \
	    "$$python" -m venv $(1) || { echo 'This Python cannot make a venv. On Debian: apt-get install python3-venv'; exit 1; }; \
	    $(1)/bin/python -m pip install -qq --disable-pip-version-check -c $(2) uv || exit 1; \
	    touch $(1)/.made; \
	    exit 0; \
	  fi; \
	done; \
	echo 'airflow-guard needs Python 3.11 or newer. Found: '"$$($(if $(PYTHON),$(PYTHON),python3) --version 2>&1)"; \
	echo 'Install one and name it: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)'; \
	exit 1
endef

# $(1) folder, $(2) constraints, $(3) extra. uv is many times faster; pip is there where uv cannot reach an index.
# What is installed is compiled, once: where PYTHONDONTWRITEBYTECODE is set, each process of Airflow would compile all that
# it imports, again and again. Some packages bring templates that are no Python: what does not compile is left alone.
define install
	@echo "$(1): installing airflow-guard[$(3)] with $(2)"
	@$(1)/bin/uv pip install --quiet --python $(1)/bin/python -c $(2) --build-constraints $(2) -e '.[$(3)]' || \
	  { echo 'uv could not install; trying pip'; $(1)/bin/python -m pip install -c $(2) -e '.[$(3)]'; }
	@echo "$(1): compiling what is installed"
	@env -u PYTHONDONTWRITEBYTECODE $(1)/bin/python -m compileall -q -j 0 $(1)/lib airflow_guard > /dev/null 2>&1 || true
	@touch $@
endef

# --- pinned dependencies ------------------------------------------------------------------------------
# Resolved for Python 3.11; what only Python 3.13 needs is added, so that one file serves both.

constraints: .venv/.made
	$(call resolve,3.3)
	$(call resolve,3.1)

RESOLVE = .venv/bin/uv pip compile --quiet --upgrade --no-header --no-annotate --no-emit-package airflow-guard \
	--extra test --extra docs --extra bench --extra chaos pyproject.toml constraints/build.in

define resolve
	$(RESOLVE) constraints/airflow-$(1).in --python-version 3.11 -o .venv/resolved-3.11.txt
	$(RESOLVE) constraints/airflow-$(1).in --python-version 3.13 -c .venv/resolved-3.11.txt -o .venv/resolved-3.13.txt
	{ echo '# Made by `make constraints` from pyproject.toml and constraints/*.in, for Python 3.11 to 3.13.'; \
	  cat .venv/resolved-3.11.txt .venv/resolved-3.13.txt | LC_ALL=C sort -u; } > constraints/airflow-$(1).txt
endef

clean:
	rm -rf .venv .venv-lowest .demo $(SYSTEM_LOG) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
