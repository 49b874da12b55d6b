# Everything is set up in .venv by the first target that needs it.
VENV := .venv
BIN := $(VENV)/bin
# What the tests run beside Python; unpacked into .venv where this machine has none.
TOOLS := kubectl docker-registry skopeo umoci prometheus promtool chromium-headless-shell
# The tests start some hundred processes: each finds its modules compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo check test lint types page pictures docs layers fast unit soak image plugin wheels chart bench lock fmt clean
help:  ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  %-8s %s\n", $$1, $$2}' Makefile

# Moved to another folder, it is made anew: its scripts have whole paths. PYTHON names an interpreter, else one is found.
MOVED := $(if $(wildcard $(VENV)/.run),$(shell read -r place < $(VENV)/.run && test "$$place" != "$$(pwd -P)" && echo moved))
$(VENV)/.run: requirements/run.txt pyproject.toml packaging/tessera-lab/pyproject.toml scripts/link.py scripts/set_up.py $(MOVED)
	@PYTHON="$(PYTHON)" scripts/set-up run

$(VENV)/.dev: $(VENV)/.run requirements/dev.txt
	@PYTHON="$(PYTHON)" scripts/set-up dev

.PHONY: moved
moved:

demo: $(VENV)/.run  ## a slice on demand, end to end, on simulated cards; ARGS=--keep keeps the cluster
	@$(BIN)/tessera demo $(ARGS)

check: lint types layers fast  ## the inner loop: under a minute

# The types are checked while tests wait for processes.
test: lint layers  ## everything that must hold before a commit
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target types unit page

lint: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(VENV)/.dev
	@$(BIN)/mypy

# Needs Node; the built files are in the tree, so that users and machines without Node need none.
page: $(VENV)/.dev  ## the live page: makes its types, then lint, types, and that its built files are those of its sources
	@$(BIN)/python scripts/page_types.py > web/src/documents.ts
	@command -v npm >/dev/null || { echo "page: npm is missing, so the built files are not compared"; exit 0; }; \
	cd web && { test node_modules/.package-lock.json -nt package-lock.json || npm ci --silent --no-audit --no-fund; } && npm run --silent lint && npm run --silent check && \
	node build.mjs ../$(VENV)/page && diff -r ../$(VENV)/page ../src/tessera/dashboard/assets

# Those that pages show; all of them are below .venv/pictures.
PICTURES := live-page-1280-light live-page-390-dark live-page-cards-light live-page-broken-768-light live-page-pods-light live-page-slow-card-light
pictures: $(VENV)/.dev  ## the pictures in docs/: those of the live page, made anew by its tests, and diagrams
	@scripts/need-debian $(VENV)/tools chromium chromium-headless-shell
	@PATH="$(CURDIR)/$(VENV)/tools/bin:$$PATH" $(BIN)/python -m website.diagrams.draw
	@mkdir -p $(VENV)/pictures
	@PATH="$(CURDIR)/$(VENV)/tools/bin:$$PATH" TESSERA_PICTURES=$(VENV)/pictures $(BIN)/pytest -q tests/dashboard/browser/test_stories.py tests/dashboard/browser/test_rights.py
	@cp $(PICTURES:%=$(VENV)/pictures/%.png) docs/pictures/
	@cat src/tessera/dashboard/assets/* tests/dashboard/browser/scene.py | sha256sum | cut -d' ' -f1 > docs/pictures/live-page.sha256

docs: $(VENV)/.dev  ## the documentation as a site that needs no network, in .venv/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --config-file website/mkdocs.yml --site-dir ../$(VENV)/site
	@echo "docs: open $(CURDIR)/$(VENV)/site/index.html"

layers: $(VENV)/.dev
	@$(BIN)/lint-imports

# Tests that start no process and no cluster.
FAST := agent/health agent/inventory agent/mig_config agent/slices api controller/cluster controller/slicing docs explain \
  mig nvml offers placement replay webhook
fast: $(VENV)/.dev
	@$(BIN)/pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m "not soak" $(addprefix tests/,$(FAST))

# Collecting compiles tests that changed once; otherwise each worker would compile all of them.
$(VENV)/.compiled: $(VENV)/.dev $(shell find tests -name 'test_*.py')
	@$(BIN)/pytest --collect-only -qq $(filter tests/%,$?) >/dev/null || true
	@touch $@

# Five workers for two cores: tests with real processes wait for them. With three, a quarter of both cores was idle.
unit: $(VENV)/.compiled
	@scripts/need-debian $(VENV)/tools $(TOOLS)
	@PATH="$(CURDIR)/$(VENV)/tools/bin:$$PATH" $(BIN)/pytest -n 5 --max-worker-restart 3 --dist loadfile --no-loadscope-reorder -m "not soak"

soak: $(VENV)/.dev  ## the long proofs, and every property test searching anew
	@scripts/need-debian $(VENV)/tools $(TOOLS)
	@PATH="$(CURDIR)/$(VENV)/tools/bin:$$PATH" TESSERA_SEARCH=1 $(BIN)/pytest -n 2 --max-worker-restart 3 --dist loadfile --no-loadscope-reorder -o faulthandler_timeout=14400

image: $(VENV)/.dev  ## the image of both platforms as an OCI layout in dist/image, without a container engine
	@scripts/need-debian $(VENV)/tools umoci
	@rm -rf dist/image
	@PATH="$(CURDIR)/$(VENV)/tools/bin:$$PATH" $(BIN)/python -m release image dist/image --source "$(SOURCE)"

plugin: $(VENV)/.dev  ## kubectl tessera for each platform, and krew's manifest, in dist/plugin
	@rm -rf dist/plugin
	@$(BIN)/python -m release plugin dist/plugin --source "$(SOURCE)" $(DOWNLOADS:%=--downloads "%")

wheels: $(VENV)/.dev  ## the wheels and source archives of both packages in dist/wheels
	@rm -rf dist/wheels
	@$(BIN)/python -m hatchling build --directory $(CURDIR)/dist/wheels
	@cd packaging/tessera-lab && $(CURDIR)/$(BIN)/python -m hatchling build --target wheel --directory $(CURDIR)/dist/wheels

chart: $(VENV)/.dev  ## the Helm chart as an archive in dist/chart
	@rm -rf dist/chart
	@$(BIN)/helm package charts/tessera --destination dist/chart

bench: $(VENV)/.dev  ## all benchmarks, each prints a table: make bench BENCH="--openb DIRECTORY"
	@$(BIN)/python -m bench $(BENCH)

fmt: $(VENV)/.dev  ## format and apply safe fixes
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

lock: $(VENV)/.dev  ## pin the dependencies anew
	@$(BIN)/python -m pip install --quiet uv
	@for f in run dev build publish; do $(BIN)/uv pip compile -q --python-version 3.11 --universal --generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" --upgrade requirements/$$f.in -o requirements/$$f.txt; done
	@$(BIN)/uv pip compile -q --python-version 3.11 --universal --no-deps --generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" requirements/darwin-amd64.in -o requirements/darwin-amd64.txt
	@$(BIN)/uv pip compile -q --python-version 3.11 --universal --no-deps --format pylock.toml requirements/run.txt | $(BIN)/python scripts/wheels.py > requirements/wheels.txt

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
