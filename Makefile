# The developer's manual. `make run` and `make test` need nothing but this repository and Python 3.11
# or later; each sets up for itself.

# Containers often set it. Then each command of a test would compile execclient anew, for a third of its time.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SHARED ?= ../shared
CODEX_VERSION := 0.169.0
MCP_INSPECTOR_VERSION := 2.12.0
MCP_EVERYTHING_VERSION := 2026.8.31
SVG_TERM_VERSION := 2.1.1
UNDICI_VERSION := 6.29.1
VITE_VERSION := 6.4.6
CODEX = $(firstword $(wildcard .interop/node_modules/@openai/codex-linux-*/vendor/*/bin/codex) \
	$(wildcard .interop/node_modules/@openai/codex/vendor/*/bin/codex))
SERVE := $(CURDIR)/$(BIN)/execserver serve
PROBE_AREAS := envelope,stdio,handshake,environment,process.start,process.env,process.events,process.read,process.write,process.control,process.tty,fs,http,concurrency,ws,session,sandbox,network
# A connection over stdio cannot be resumed, so cut_resume is the WebSocket's alone.
STDIO_SCENARIOS := oneshot,failing,tty,bigout,patch,agents_md,parallel,view_image,leftover,mcp_stdio,interrupt,sandbox_workspace_write,sandbox_read_only,patch_sandboxed
SCENARIOS := $(STDIO_SCENARIOS),cut_resume

.PHONY: help setup run test check lint format types imports schemas schemas-check unit first-tests \
	second-tests background-tests watch docs docs-check first-docs second-docs demo dist release release-tools \
	release-tests release-check soak faults fleet first-fleet second-fleet limits-vm limits-vm-setup fuzz \
	bubblewrap terminal-tools ssh-server browser console console-tests first-console second-console runtimes npm \
	shells network-tools container-check integrations interop interop-setup probe relay-probe sandbox-backend \
	vectors stock-client stock-websocket stock-stdio beside-stock relay-stock systemd-setup systemd-verify \
	foreign-clients forward-vite typescript-setup typescript typescript-driver typescript-probe \
	typescript-probe-short bench bench-gate bench-relay bench-fleet bench-scale bench-commands clean

# A heading of this list begins with `##@`, a line of it is what follows `##` behind a target.
help:
	@awk -F ':.*## ' '/^##@ / {printf "\n%s\n", substr($$0, 5)} \
		/^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' Makefile

##@ Every day

setup: $(VENV)/.ready ## install everything into .venv, in the versions of constraints.txt

$(VENV)/.ready: pyproject.toml clients/python/pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed, this is %d.%d; say make PYTHON=..." % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --group dev \
		--editable clients/python --editable ".[fleet,otel,search]"
	touch $@

run: setup ## start a daemon, and run the quick start through the client
	$(BIN)/python -m execclient.quickstart

test: setup lint types imports schemas-check unit ## lint, check types, layers and schemas, run the tests: what CI runs first

check: test

watch: setup ## until Ctrl-C: lint, types and the tests of what was saved
	$(BIN)/python -m tools.watch

lint: setup ## check format and lint (ruff)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: setup ## write the code as ruff wants it
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: setup ## check types (mypy)
	$(BIN)/mypy

imports: setup ## check the layers (import-linter)
	$(BIN)/lint-imports

schemas: setup ## write the schemas and the reference pages from the code
	$(BIN)/python -m tools.wire_docs.schemas schemas docs/reference/messages.md execserver/api/openrpc.json
	$(BIN)/python -m tools.wire_docs.settings_reference docs/reference/settings.md
	$(BIN)/python -m tools.wire_docs.errors_reference docs/protocol.md docs/reference/errors.md
	$(BIN)/python -m tools.wire_docs.metrics_reference docs/reference/metrics.md
	$(BIN)/python -m tools.client_reference clients/python docs/reference/client.md docs/reference/tools.md
	$(BIN)/python -m tools.tool_schemas schemas/tools

schemas-check: setup ## compare the schemas and the reference pages with the code
	$(BIN)/python -m tools.wire_docs.schemas --check schemas docs/reference/messages.md execserver/api/openrpc.json
	$(BIN)/python -m tools.wire_docs.settings_reference --check docs/reference/settings.md
	$(BIN)/python -m tools.wire_docs.errors_reference --check docs/protocol.md docs/reference/errors.md
	$(BIN)/python -m tools.wire_docs.metrics_reference --check docs/reference/metrics.md
	$(BIN)/python -m tools.client_reference --check clients/python docs/reference/client.md docs/reference/tools.md
	$(BIN)/python -m tools.tool_schemas --check schemas/tools

# `docs-check` has the tests that are marked `manual`.
PYTEST := $(BIN)/python -m pytest -q --durations=30 --durations-min=1 -m "not manual"

# Two pytests over disjoint folders, about as long as each other, for two cores; what is not named in the
# first runs in the second. A pytest of its own each, since some tests kill or count all that is below theirs.
# A third one takes three minutes of thirty off, and lets tests of response times fail.
FIRST_TESTS := tests/faults tests/sandbox tests/fuzz tests/docs \
	$(filter-out %/__pycache__ %/conftest.py $(addprefix tests/integration/,commands patch relay),$(wildcard tests/integration/*))

unit: setup bubblewrap terminal-tools runtimes shells network-tools console
	$(MAKE) --no-print-directory --keep-going --jobs=2 --output-sync=target first-tests second-tests background-tests

first-tests: setup
	$(PYTEST) -o cache_dir=.pytest_cache/first $(FIRST_TESTS) $(FLEET_TESTS:%=--ignore=%)

second-tests: setup
	$(PYTEST) -o cache_dir=.pytest_cache/second tests $(FIRST_TESTS:%=--ignore=%) $(FLEET_TESTS:%=--ignore=%) \
		--ignore=tests/third_party --ignore=tests/console

# Their servers of NATS elect leaders for seconds each time that one is killed. CI runs them if relays changed.
FLEET_TESTS := tests/integration/relay/fleet tests/deploy/test_pods.py \
	$(addprefix tests/faults/,test_fleet.py test_fleet_nats.py) \
	$(addprefix tests/soak/,test_fleet_benchmark.py test_scale_benchmark.py)
FIRST_FLEET := $(addprefix tests/integration/relay/fleet/test_,bus.py registry_store.py store_faults.py connection.py)

# Two pytests for two cores, about as long as each other.
fleet: setup bubblewrap network-tools ## relays that share NATS, with real servers that are killed
	$(MAKE) --no-print-directory --keep-going --jobs=2 --output-sync=target first-fleet second-fleet

first-fleet: setup
	$(PYTEST) -o cache_dir=.pytest_cache/first $(FIRST_FLEET)

second-fleet: setup
	$(PYTEST) -o cache_dir=.pytest_cache/second $(FLEET_TESTS) $(FIRST_FLEET:%=--ignore=%)

# What depends on signals, users and folders, as a background job of an ordinary user below /tmp runs it:
# `make test` holds there too. BACKGROUND=tests/faults runs a whole folder so.
BACKGROUND = tests/unit/test_trust.py tests/unit/supervisor tests/unit/processes/test_sandboxed_child.py \
	tests/unit/sandbox/test_state_folder.py tests/integration/supervisor tests/integration/commands \
	$(addprefix tests/integration/client/,test_quickstart.py test_stdio.py test_sync.py) \
	-k '(signal or interrupt or nohup or hangup or ctrl or ignored or trust or state or background) and not any_line'

background-tests: setup ## a part of the tests as a background job of an ordinary user, below /tmp
	$(BIN)/python -m tests.background $(BACKGROUND)

# What the distribution has: $(call install,TEST,PACKAGES,WHAT IS MISSING).
define install
@{ $(1); } || \
	if test "$$(id -u)" = 0 && command -v apt-get >/dev/null; \
	then apt-get update -q && apt-get install -q -y --no-install-recommends $(2); \
	else echo "$(3): missing; install $(2), or run make $@ as root" >&2; exit 1; fi
endef

# Commands and file requests are confined by it.
bubblewrap:
	$(call install,command -v bwrap >/dev/null,bubblewrap,bwrap 0.8.0 or later)

# `execserver attach` is tested in a real terminal, with a program that fills it.
terminal-tools:
	$(call install,command -v tmux >/dev/null && command -v vim >/dev/null,tmux vim,tmux or vim)

# Shell snapshots are compared with its login shell.
shells:
	$(call install,command -v zsh >/dev/null,zsh,zsh)

# The manual's page on ssh is followed with a real one.
ssh-server:
	$(call install,command -v ssh >/dev/null && test -x /usr/sbin/sshd,openssh-client openssh-server,ssh or sshd)

# The manual's site is read in a browser. One package has the driver of the other's version.
browser:
	$(call install,command -v chromium >/dev/null && command -v chromedriver >/dev/null,chromium chromium-driver,chromium or chromedriver)

# What programs of C and Node do with sockets in a sandbox is tried with real ones.
runtimes:
	$(call install,command -v cc >/dev/null && command -v node >/dev/null,gcc libc6-dev nodejs,cc or node)

# Debian's package of Node has none.
npm: runtimes
	$(call install,command -v npm >/dev/null,npm,npm)

# Programs that find the proxy of a managed network: git, npm, one of Go that is built once, Node with the agent
# that its `fetch` needs before version 24. And what the internet of these tests is made by.
NETWORK_TOOLS := .interop/network
GO = $(or $(shell command -v go),/usr/lib/go-1.19/bin/go)

network-tools: npm
	$(call install,(for each in git curl ip openssl; do command -v $$each >/dev/null || exit 1; done),git curl iproute2 openssl,git curl ip or openssl)
	$(call install,test -x $(GO),golang-1.19-go,go)
	@$(MAKE) --no-print-directory $(NETWORK_TOOLS)/fetch $(NETWORK_TOOLS)/undici.ready

$(NETWORK_TOOLS)/fetch: tests/network/fetch.go
	mkdir -p $(@D)
	CGO_ENABLED=0 GO111MODULE=off GOCACHE=$(CURDIR)/$(@D)/go-cache $(GO) build -o $@ $<

$(NETWORK_TOOLS)/undici.ready:
	npm install --no-package-lock --no-audit --no-fund --loglevel error --prefix $(@D) undici@$(UNDICI_VERSION)
	touch $@

##@ The manual and the distributions

# mkdocs-material says at each build what will come after it.
docs: setup ## the manual as a site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open site/index.html"

# Two pytests for two cores, about as long as each other. `make test` has the tests that are not marked.
FIRST_DOCS := $(addprefix tests/docs/test_,stranger.py browser.py demo.py)
DOCS_PYTEST := $(BIN)/python -m pytest -q --durations=10 --durations-min=1 -m manual

docs-check: setup bubblewrap ssh-server terminal-tools browser console ## run what the manual says, read the site in a browser, install the wheels
	$(MAKE) --no-print-directory --keep-going --jobs=2 --output-sync=target first-docs second-docs

first-docs: setup
	$(DOCS_PYTEST) -o cache_dir=.pytest_cache/first $(FIRST_DOCS)

second-docs: setup
	$(DOCS_PYTEST) -o cache_dir=.pytest_cache/second tests/docs $(FIRST_DOCS:%=--ignore=%)

# The page of `execserver console`. Its folder is not in Git: the wheel and the sdist carry it.
CONSOLE := clients/python/execclient/console/static
CONSOLE_SOURCES := $(addprefix clients/console/,package.json tsconfig.json build.mjs) \
	$(wildcard clients/console/src/* clients/console/static/*)

console: $(CONSOLE)/console.js ## build the page of `execserver console` (TypeScript); needs npm

$(CONSOLE)/console.js: $(CONSOLE_SOURCES) | npm
	npm install --no-package-lock --no-audit --no-fund --loglevel error --prefix clients/console
	npm run --silent --prefix clients/console check
	npm run --silent --prefix clients/console build -- $(CURDIR)/$(CONSOLE)

# Two pytests for two cores, about as long as each other.
FIRST_CONSOLE := tests/console/test_page.py
CONSOLE_PYTEST := $(BIN)/python -m pytest -q --durations=10 --durations-min=1

console-tests: setup bubblewrap browser console ## the console in a browser, at daemons that are killed, and attacks on it
	$(MAKE) --no-print-directory --keep-going --jobs=2 --output-sync=target first-console second-console

first-console: setup
	$(CONSOLE_PYTEST) -o cache_dir=.pytest_cache/first $(FIRST_CONSOLE)

second-console: setup
	$(CONSOLE_PYTEST) -o cache_dir=.pytest_cache/second tests/console $(FIRST_CONSOLE:%=--ignore=%)

DIST ?= dist

# Each wheel is built from its sdist, by the hatchling of constraints.txt: the same source gives the same bytes.
dist: setup console ## sdist and wheel of execclient and of execserver, in dist/
	$(BIN)/python -m build --no-isolation --outdir $(DIST) clients/python
	$(BIN)/python -m build --no-isolation --outdir $(DIST) .

# NOTES=--unreleased rehearses a release, before the changelog has a section for the version.
release: setup release-tools typescript-setup ## what is published, in dist/VERSION: see CONTRIBUTING.md; publishes nothing
	$(BIN)/python -m tools.release $(NOTES) --tools $(RELEASE)/bin $(DIST)

# The picture of README.md.
demo: setup release-tools terminal-tools ## record the session of the README anew, docs/assets/demo.svg
	$(BIN)/python -m tools.demo --tools $(RELEASE) docs/assets/demo.svg

RELEASE := .release

# Their dependencies would not go together with those of the tests.
release-tools: $(RELEASE)/.ready

$(RELEASE)/.ready: pyproject.toml constraints.txt
	test -x $(RELEASE)/bin/python || $(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --group release
	npm install --no-package-lock --no-audit --no-fund --loglevel error --prefix $(RELEASE) svg-term-cli@$(SVG_TERM_VERSION)
	touch $@

release-tests: setup release-tools typescript-setup bubblewrap ## a release twice, the same bytes; pipx and uvx; types from the wheel
	$(BIN)/python -m pytest -q --durations=10 --durations-min=1 tests/release

release-check: ## test, fleet, console-tests, docs-check, release-tests, integrations, typescript, interop, sandbox-backend, limits-vm, whatever changed
	$(MAKE) test
	$(MAKE) fleet
	$(MAKE) console-tests
	$(MAKE) docs-check
	$(MAKE) release-tests
	$(MAKE) integrations
	$(MAKE) typescript
	$(MAKE) typescript-probe
	$(MAKE) interop
	$(MAKE) limits-vm
	$(MAKE) sandbox-backend

##@ Longer tests

soak: setup ## 10,000 commands, then look for what they left behind, a watch of 1,000,000 changes, and 100,000 acts in an audit folder
	EXECSERVER_SOAK_COMMANDS=10000 EXECSERVER_SOAK_CHANGES=1000000 EXECSERVER_SOAK_ACTS=100000 \
		$(BIN)/python -m pytest -q tests/soak --timeout 1200

limits-vm-setup:
	$(call install,test -x /usr/lib/qemu/virtiofsd && ls /boot/vmlinuz-*-cloud-amd64 >/dev/null && test -x /bin/busybox && command -v cpio >/dev/null,qemu-system-x86 linux-image-cloud-amd64 busybox-static cpio,QEMU 7 with virtiofsd or a cloud kernel or busybox)

# The processor is emulated where KVM does not work. LIMITS_VM_TESTS picks a part, as -k, and LIMITS_VM_USERS root or
# ordinary.
limits-vm: setup limits-vm-setup ## the tests of limits in a machine with cgroup v2, as root and as an ordinary user
	$(BIN)/python -m tests.limits.vm.machine

# FAULTS='-k take_over' picks a part.
faults: setup ## kill, cut, fill and starve the daemon in every state, and at every step of a patch
	EXECSERVER_FAULTS=long $(BIN)/python -m pytest -q tests/faults/matrix tests/faults/test_streams.py \
		tests/faults/test_take_over.py tests/faults/test_unread.py tests/faults/test_edits.py \
		tests/faults/test_patch.py tests/faults/test_relay.py \
		tests/faults/test_fleet.py tests/faults/test_fleet_nats.py $(FAULTS)

# FUZZ='-k websocket/lean' picks a framing; EXECSERVER_FUZZ_SEED makes other messages.
fuzz: setup ## 200,000 mutated messages over each framing, and 100,000 shell scripts
	EXECSERVER_FUZZ_MESSAGES=$${EXECSERVER_FUZZ_MESSAGES:-200000} \
		EXECSERVER_FUZZ_SCRIPTS=$${EXECSERVER_FUZZ_SCRIPTS:-100000} \
		$(BIN)/python -m pytest -q tests/fuzz tests/unit/client/govern/policy/test_bash_fuzz.py $(FUZZ)

# Debian's packages and Python's are loaded anew. EXECSERVER_IMAGE_FOLDER=DIR keeps the base in DIR for the next time.
container-check: setup bubblewrap ## build examples/container without an engine, and run it as process 1; needs root
	$(call install,command -v debootstrap >/dev/null && command -v buildah >/dev/null,debootstrap buildah,debootstrap or buildah)
	$(BIN)/python -m pytest -q -s tests/container/image_check.py

##@ Other projects' suites on execclient.integrations

# By the names of the extras. What one project needs does not go together with what the others need, so each has
# an environment of its own, `.integrations/NAME`, in the versions of `tests/third_party/NAME/constraints.txt`.
INTEGRATIONS := $(patsubst tests/third_party/%/constraints.txt,%,$(wildcard tests/third_party/*/constraints.txt))
UV := .integrations/uv/bin/uv
# Commands that have nothing to do with a sandbox are confined too: that is the default of each integration.
THIRD_PARTY_PYTEST = -m pytest -q --durations=5 --durations-min=1 --confcutdir=tests/third_party

# `make integrations INTEGRATIONS=fsspec` runs one of them.
integrations: bubblewrap $(INTEGRATIONS:%=.integrations/%/.ready) ## each suite, and each again while connections are cut and the server is killed
	$(MAKE) --no-print-directory --keep-going --jobs=3 --output-sync=target \
		$(if $(filter mcp,$(INTEGRATIONS)),integration-mcp-hosts) $(INTEGRATIONS:%=integration-%)

integration-%: .integrations/%/.ready
	.integrations/$*/bin/mypy --cache-dir .mypy_cache/$* $(wildcard clients/python/execclient/integrations/$*.py) \
		$(wildcard clients/python/execclient/integrations/$*/*.py) $(wildcard tests/third_party/$*/*.py)
	.integrations/$*/bin/python $(THIRD_PARTY_PYTEST) -o cache_dir=.pytest_cache/$* tests/third_party/$*
	.integrations/$*/bin/python $(THIRD_PARTY_PYTEST) -o cache_dir=.pytest_cache/$* --chaos tests/third_party/$*

.integrations/%/.ready: tests/third_party/%/constraints.txt clients/python/pyproject.toml pyproject.toml | $(UV)
	$(UV) venv --quiet --allow-existing --python $(PYTHON) .integrations/$*
	$(UV) pip install --quiet --python .integrations/$* --constraint $< --group third-party-$* \
		--editable "clients/python[$*]" --editable .
	touch $@

# Programs of npm beside the packages of `.integrations/mcp`: a host and a server of MCP.
MCP_NODE := .integrations/mcp/node_modules/.ready
integration-mcp: $(MCP_NODE)

# These hosts of MCP wait for commands that take longer than a call may: both runs at a time, beside the others.
MCP_HOSTS = .integrations/mcp/bin/python $(THIRD_PARTY_PYTEST) tests/third_party/mcp_hosts
integration-mcp-hosts: $(MCP_NODE) interop-setup
	.integrations/mcp/bin/mypy --cache-dir .mypy_cache/mcp_hosts $(wildcard tests/third_party/mcp_hosts/*.py)
	$(MCP_HOSTS) -o cache_dir=.pytest_cache/mcp_hosts & \
		$(MCP_HOSTS) -o cache_dir=.pytest_cache/mcp_hosts_chaos --chaos; chaos=$$?; wait $$! && exit $$chaos

$(MCP_NODE): Makefile | .integrations/mcp/.ready
	npm install --no-package-lock --no-audit --no-fund --loglevel error --prefix .integrations/mcp \
		@modelcontextprotocol/inspector@$(MCP_INSPECTOR_VERSION) \
		@modelcontextprotocol/server-everything@$(MCP_EVERYTHING_VERSION)
	touch $@

# The tests of these projects are in their source distributions only.
SDISTS := openai_agents swe_rex
$(SDISTS:%=integration-%): integration-%: .integrations/%/sdist/.ready
.integrations/%/sdist/.ready: .integrations/%/.ready
	rm -rf $(@D) && mkdir $(@D)
	.integrations/uv/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: \
		--dest $(@D) $$(grep '^$(subst _,-,$*)==' tests/third_party/$*/constraints.txt)
	tar -xzf $(@D)/*.tar.gz -C $(@D) --strip-components 1
	touch $@

$(UV): constraints.txt
	test -x .integrations/uv/bin/python || $(PYTHON) -m venv .integrations/uv
	.integrations/uv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	touch $@

# The conformance suite of MCP.
MCP_CONFORMANCE := .integrations/mcp/conformance/.ready
integration-mcp: $(MCP_CONFORMANCE)
$(MCP_CONFORMANCE): Makefile | .integrations/mcp/.ready
	npm install --no-package-lock --no-audit --no-fund --loglevel error --prefix .integrations/mcp/conformance \
		@modelcontextprotocol/conformance@0.1.13
	touch $@

# The newest versions that the extra permits: `make constraints-fsspec`.
constraints-%: $(UV) ## the constraints of an integration anew, in the newest versions
	$(UV) venv --quiet --clear --python $(PYTHON) .integrations/$*
	$(UV) pip install --quiet --python .integrations/$* --group third-party-$* --editable "clients/python[$*]" --editable .
	$(UV) pip freeze --quiet --exclude-editable --python .integrations/$* > tests/third_party/$*/constraints.txt
	touch .integrations/$*/.ready

##@ The TypeScript client

TYPESCRIPT := clients/typescript

# The versions are those of its package.json. Packages are in another folder, so that what reads the sources of this
# repository does not read theirs.
TYPESCRIPT_PACKAGES := .interop/typescript
VSCODE_SAMPLE := examples/vscode
VSCODE_PACKAGES := .interop/vscode

typescript-setup: setup npm browser $(TYPESCRIPT_PACKAGES)/.ready $(VSCODE_PACKAGES)/.ready

$(TYPESCRIPT_PACKAGES)/.ready: $(TYPESCRIPT)/package.json
	mkdir -p $(@D)
	cp $< $(@D)
	npm install --no-package-lock --no-audit --no-fund --loglevel error --prefix $(@D)
	ln -sfn ../../$(@D)/node_modules $(TYPESCRIPT)/node_modules
	touch $@

# It has the client itself, not a copy of what the client was when this was installed.
$(VSCODE_PACKAGES)/.ready: $(VSCODE_SAMPLE)/package.json
	mkdir -p $(@D)
	cp $< $(@D)
	npm install --install-links --no-package-lock --no-audit --no-fund --loglevel error --prefix $(@D)
	rm -rf $(@D)/node_modules/execclient
	ln -s ../../../$(TYPESCRIPT) $(@D)/node_modules/execclient
	ln -sfn ../../$(@D)/node_modules $(VSCODE_SAMPLE)/node_modules
	touch $@

# EXECCLIENT_CUTS=1000 is the long form: two minutes on a quiet machine.
typescript: typescript-setup ## the client of TypeScript and the sample for VS Code: build, tests with daemons, 25 random cuts
	cd $(TYPESCRIPT) && npm run --silent generate-check && npm run --silent build && npm run --silent test
	cd $(VSCODE_SAMPLE) && npm run --silent build && npm run --silent test

# TRANSPORTS=ws picks one.
TRANSPORTS := stdio unix ws
TYPESCRIPT_DRIVER := $(CURDIR)/$(TYPESCRIPT)/build/driver.js

typescript-driver: typescript-setup bubblewrap
	cd $(TYPESCRIPT) && npm run --silent build && node_modules/.bin/tsc -p tests

typescript-probe: typescript-driver ## all conformance cases through the TypeScript client, over each transport; needs $SHARED
	for each in $(TRANSPORTS); do \
		$(BIN)/python -m tests.interop.typescript_probe $(SHARED) $$each --jobs 2 --slow && \
		EXECSERVER_TEST_COMMAND="node $(TYPESCRIPT_DRIVER) $$each serve" \
			$(BIN)/python -m pytest -q -p tests.interop.typescript_cases tests/conformance || exit 1; done

# What CI runs of it: what streams, and what waits.
SHORT_PROBE := process.events,process.read,process.write,process.control,process.tty,concurrency,http
typescript-probe-short: typescript-driver
	$(BIN)/python -m tests.interop.typescript_probe $(SHARED) ws --jobs 2 --areas $(SHORT_PROBE)

##@ The reference and other programs

interop-setup: setup
	npm install --no-package-lock --no-audit --no-fund --loglevel error --prefix .interop @openai/codex@$(CODEX_VERSION)

# Three at a time, once nothing more is to be installed: they wait more than they work, the probe longest.
interop: interop-setup bubblewrap systemd-setup browser ## all of this section; needs $SHARED, npm and systemd's programs
	$(MAKE) --no-print-directory --keep-going --jobs=3 --output-sync=target \
		probe stock-websocket vectors relay-stock stock-stdio relay-probe beside-stock foreign-clients systemd-verify \
		forward-vite

probe: setup ## the conformance probe of the reference
	test -d $(SHARED)/conformance || { echo "$(SHARED) is missing: set SHARED to the shared folder" >&2; exit 1; }
	$(BIN)/python $(SHARED)/conformance/probe.py --server "$(SERVE)" --areas $(PROBE_AREAS) --jobs 2 --slow

# The same through a relay, by its door for plain clients; cases that need a server of their own are left out.
relay-probe: setup bubblewrap ## the same through a relay
	test -d $(SHARED)/conformance || { echo "$(SHARED) is missing: set SHARED to the shared folder" >&2; exit 1; }
	$(BIN)/python -m tests.interop.relay_probe $(SHARED) --areas $(PROBE_AREAS) --jobs 2

# The example of a sandbox backend, held to what bubblewrap is held to. The recorded acts need $SHARED.
SANDBOX_BACKEND_TESTS = $(addprefix tests/sandbox/test_,acts.py commands.py edits.py files.py take_over.py)

sandbox-backend: setup bubblewrap ## the example of a sandbox backend, by crun, in the tests of sandboxes
	$(call install,command -v crun >/dev/null && command -v dumb-init >/dev/null,crun dumb-init,crun or dumb-init)
	EXECSERVER_TEST_BACKEND=example $(BIN)/python -m pytest -q $(SANDBOX_BACKEND_TESTS)
	EXECSERVER_TEST_BACKEND=example EXECSERVER_VECTORS=$${EXECSERVER_VECTORS:-$(SHARED)/vectors} \
		$(BIN)/python -m pytest -q tests/vectors/test_sandbox_battery.py

# EXECSERVER_VECTORS names another folder; -k 'sandbox_battery and root' in VECTORS picks cases.
vectors: setup bubblewrap ## recorded cases: sandboxes, rules, approvals, texts, patches
	EXECSERVER_VECTORS=$${EXECSERVER_VECTORS:-$(SHARED)/vectors} $(BIN)/python -m pytest -q tests/vectors $(VECTORS)

stock-client: stock-websocket stock-stdio ## turns of the stock codex agent, over a WebSocket and over stdio

stock-websocket: interop-setup
	test -n "$(CODEX)" || { echo "the codex binary is not below .interop: run make interop-setup" >&2; exit 1; }
	CODEX_BIN=$(CURDIR)/$(CODEX) $(BIN)/python $(SHARED)/stock_client/run_turn.py --scenario $(SCENARIOS) \
		--server-cmd "$(SERVE) --listen ws://127.0.0.1:{port}"
	CODEX_BIN=$(CURDIR)/$(CODEX) $(BIN)/python $(SHARED)/stock_client/run_turn.py \
		--scenario sandbox_workspace_write,sandbox_read_only,patch_sandboxed \
		--server-cmd "$(SERVE) --require-sandbox --listen ws://127.0.0.1:{port}"
	CODEX_BIN=$(CURDIR)/$(CODEX) $(BIN)/python -m tests.interop.stock_turns $(SHARED) --scenario mcp_http,kill_server,managed_network \
		--server-cmd "$(SERVE) --listen ws://127.0.0.1:{port}"

stock-stdio: interop-setup
	test -n "$(CODEX)" || { echo "the codex binary is not below .interop: run make interop-setup" >&2; exit 1; }
	CODEX_BIN=$(CURDIR)/$(CODEX) $(BIN)/python $(SHARED)/stock_client/run_turn.py --scenario $(STDIO_SCENARIOS) \
		--stdio-cmd "$(SERVE) --listen stdio"
	CODEX_BIN=$(CURDIR)/$(CODEX) $(BIN)/python -m tests.interop.stock_turns $(SHARED) --scenario mcp_http,managed_network \
		--stdio-cmd "$(SERVE) --listen stdio"

# vite 7 needs a newer Node than Debian's 20.
FORWARD := .interop/forward

$(FORWARD)/vite-$(VITE_VERSION).ready:
	npm install --no-package-lock --no-audit --no-fund --loglevel error --prefix $(FORWARD) vite@$(VITE_VERSION)
	touch $@

forward-vite: setup bubblewrap browser runtimes $(FORWARD)/vite-$(VITE_VERSION).ready ## a hot reload in a browser, through a forwarded port
	$(BIN)/python -m pytest -q tests/interop/forward_vite.py

beside-stock: interop-setup bubblewrap ## our answers beside those of the stock server: discovery, network proxy
	test -n "$(CODEX)" || { echo "the codex binary is not below .interop: run make interop-setup" >&2; exit 1; }
	CODEX_BIN=$(CURDIR)/$(CODEX) $(BIN)/python -m pytest -q tests/interop/beside_stock.py

# Our relay with stock executors, stock agents and the stock forwarder, and which takes over how fast.
relay-stock: interop-setup bubblewrap ## our relay with stock executors, agents and forwarders
	test -n "$(CODEX)" || { echo "the codex binary is not below .interop: run make interop-setup" >&2; exit 1; }
	CODEX_BIN=$(CURDIR)/$(CODEX) RELAY_SHARED=$(abspath $(SHARED)) $(BIN)/python -m pytest -q -s tests/interop/relay_stock.py

# systemd need not run.
systemd-setup:
	$(call install,command -v systemd-analyze >/dev/null,systemd,systemd-analyze)

systemd-verify: setup systemd-setup ## our units, as systemd's own programs read them
	$(BIN)/python -m pytest -q tests/systemd/verify_units.py

EDITOR_PLUGIN := .interop/editor-plugin

# The versions are those of the manual's example.
foreign-clients: setup ## clients of Node that others wrote
	mkdir -p $(EDITOR_PLUGIN)
	cp docs/how-to/editor-plugin/package.json $(EDITOR_PLUGIN)
	npm install --no-package-lock --no-audit --no-fund --loglevel error --prefix $(EDITOR_PLUGIN)
	$(BIN)/python -m pytest -q tests/interop/node_clients.py

##@ Benchmarks

bench: setup interop-setup ssh-server ## compare with the reference, as ratios
	$(BIN)/python -m benchmarks.compare --with-spool --markdown docs/benchmarks.md

bench-gate: setup interop-setup ssh-server ## the same, and fail where we are slower
	$(BIN)/python -m benchmarks.compare --with-spool --gate

bench-relay: setup ## what a relay costs, beside the same server without one
	$(BIN)/python -m benchmarks.relay --markdown docs/benchmarks.md

bench-fleet: setup ## what a second relay and NATS between them cost, beside one relay and none
	$(BIN)/python -m benchmarks.relay_fleet --markdown docs/benchmarks.md

bench-scale: setup ## what one more executor, client or frame costs the relays of a fleet and NATS
	$(BIN)/python -m benchmarks.relay_scale --markdown docs/explanation/scaling.md

bench-commands: setup ## how long commands and copies of directories take, beside ssh and tar
	$(BIN)/python -m benchmarks.commands --markdown docs/benchmarks.md

##@ Other

clean: ## remove .venv and all caches
	rm -rf $(VENV) .interop .release .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
