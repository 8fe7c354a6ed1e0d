# Run make without a target for the list.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help check fmt format vet lint build test race chaos leak fuzz golden bench deploy-check clean

LINT := bin/golangci-lint
PKGS := ./...

help: ## This list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

check: fmt vet lint test race deploy-check ## Everything CI runs

fmt: $(LINT) ## Fail on code that is not formatted, and show the difference
	$(LINT) fmt --diff

format: $(LINT) ## Format all code
	$(LINT) fmt

vet: ## go vet
	go vet $(PKGS)

lint: $(LINT) ## golangci-lint, as .golangci.yml says
	$(LINT) run $(PKGS)

build: ## Build the binaries into bin/
	@mkdir -p bin
	@for d in cmd/*/; do \
		out=$$(basename $$d); [ $$out = cli ] && out=rookery; \
		echo "go build -o bin/$$out ./$$d"; go build -trimpath -o bin/$$out ./$$d || exit 1; \
	done

test: ## All tests
	go test $(PKGS)

race: ## The tests, and the programs that test/chaos kills, under the race detector, in random order (needs a C compiler)
	CGO_ENABLED=1 go test -race -shuffle=on $(PKGS)

chaos: ## KILLS (default 300) of processes, brokers and links under load, and a cut of 3 minutes; SEED plays a failure again
	CHAOS_KILLS=$(or $(KILLS),300) CHAOS_SEED=$(or $(SEED),$(shell date +%s)) CHAOS_CUT=180 \
		go test -count=1 -timeout=2h -run 'TestStorm|TestLink_CutOverTheEndOfACall' -v ./test/chaos

leak: ## SESSIONS (default 10000) short sessions through one orchestrator and worker leave nothing behind; a minute
	LEAK_SESSIONS=$(or $(SESSIONS),10000) go test -count=1 -timeout=1h -run TestSessions_LeaveNothingBehind -v ./test/budget

fuzz: ## Each fuzz target for FUZZTIME (default 30s)
	bash tools/fuzz.sh $(or $(FUZZTIME),30s)

golden: ## Rewrite what the scenarios expect; review the difference
	go test ./internal/engine -update

bench: ## Measure rookery beside the floor that NATS puts under it (ROWS=call,turn SCALE=0.2)
	go run ./bench -rows "$(ROWS)" -scale $(or $(SCALE),1)

deploy-check: ## Check the files under deploy/ with what this machine has
	bash deploy/check.sh

clean: ## Remove what was built
	rm -rf bin

# The go command's cache makes this cheap when nothing changed.
$(LINT): tools/go.mod tools/go.sum
	@mkdir -p bin
	cd tools && go build -trimpath -o ../$(LINT) github.com/golangci/golangci-lint/v2/cmd/golangci-lint
