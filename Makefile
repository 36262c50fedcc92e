# `make demo` and `make test` set up a virtual environment first; it is made again only when its inputs change.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready

.PHONY: demo test check bench clean

demo: $(READY)
	$(VENV)/bin/recollect demo

test: $(READY) check
	$(VENV)/bin/python -m pytest

# Speed against a bare PyTorch loop: results/bench.json and docs/speed.md. DATA=folder adds Tiny ImageNet's memory.
bench: $(READY)
	$(VENV)/bin/python benchmarks/speed.py run $(if $(DATA),--data-root $(DATA))

check: $(READY)
	$(VENV)/bin/ruff check -q .
	$(VENV)/bin/ruff format -q --check .
	$(VENV)/bin/mypy

$(READY): pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,hub,ray,optuna,tensorboard,mlflow]"
	touch $@

clean:
	rm -rf $(VENV) runs
