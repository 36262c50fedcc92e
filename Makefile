# Targets set up a virtual environment first; it is made again only when its inputs change.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
TESTS_READY := $(VENV)/.ready-for-tests
DOCS_READY := $(VENV)/.ready-for-docs
unexport PYTHONDONTWRITEBYTECODE  # else every process that tests start would compile torch again
INSTALL := $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

.PHONY: setup demo test test-avx2 check docs bench results clean

setup: $(READY)

demo: $(READY)
	$(VENV)/bin/recollect demo

test: $(TESTS_READY) check
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n 2 --dist worksteal

# The tests that train networks, as on a processor without AVX-512; what does not depend on the processor is left out.
test-avx2: $(TESTS_READY)
	ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n 2 --dist worksteal \
	  tests/core tests/nets tests/methods/test_conformance.py tests/deploy/test_export.py \
	  -k "not resumes_mid and not scores_are and not memory_stays and not counts_its and not suite and not environment and not (export and (efficientnet or vit or resnet or merged or near_one))"

# The documentation as a site, site/index.html; a broken link, anchor or API name is an error.
docs: $(DOCS_READY)
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build

# Speed against a bare PyTorch loop: results/bench.json and docs/speed.md. DATA=folder adds Tiny ImageNet's memory.
bench: $(READY)
	$(VENV)/bin/python benchmarks/speed.py run $(if $(DATA),--data-root $(DATA))

# README's table and picture, docs/results.md and its pictures, from the raw results under results/.
results: $(READY)
	$(VENV)/bin/python benchmarks/results.py

check: $(TESTS_READY)
	$(VENV)/bin/ruff check -q .
	$(VENV)/bin/ruff format -q --check .
	$(VENV)/bin/mypy

$(READY): pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) -e .
	touch $@

$(TESTS_READY): $(READY)
	$(INSTALL) -e ".[dev,docs,hub,efficientnet,ray,optuna,tensorboard,mlflow,onnx,serve]"
	touch $@ $(DOCS_READY)

$(DOCS_READY): $(READY)
	$(INSTALL) -e ".[docs]"
	touch $@

clean:
	rm -rf $(VENV) site .mypy_cache .pytest_cache .ruff_cache
