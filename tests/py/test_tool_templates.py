"""Public chat templates: the syntax that is found in each, and calls that a template writes: the parser reads them
back, and the grammar of the tools takes exactly these bytes."""
import ctypes
import json

import pytest

from chat_oracle import LIB, SHARED, Quern

TEMPLATES = SHARED / "data" / "chat-templates"
needs_templates = pytest.mark.skipif(not TEMPLATES.is_dir(), reason=f"no templates in {TEMPLATES}")

FOUND = {
    "Qwen-Qwen2.5-7B-Instruct": ("hermes", ""),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": ("hermes", ""),
    "ibm-granite-granite-4.1": ("hermes", ""),
    "Reka-Edge": ("hermes", "think"),
    "MiMo-VL": ("hermes", ""),
    "Qwen3-Coder": ("qwen3_coder", ""),
    "meta-llama-Llama-3.2-3B-Instruct": ("llama3_json", ""),
    "mistralai-Mistral-Nemo-Instruct-2407": ("mistral_array", ""),
    "Mistral-Small-3.2-24B-Instruct-2506": ("mistral_call_id", ""),
    "unsloth-mistral-Devstral-Small-2507": ("mistral", ""),
    "deepseek-ai-DeepSeek-V3.1": ("deepseek_v31", "think"),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": ("deepseek_v3", "think"),
    "GLM-4.7-Flash": ("glm47", "think"),
    "Kimi-K2-Instruct": ("kimi_k2", ""),
    "ibm-granite-granite-3.3-2B-Instruct": ("granite", "think"),
    "MiniMax-M2": ("minimax_m2", "think"),
    "NVIDIA-Nemotron-Nano-v2": ("nemotron", "think"),
    "LFM2.5-8B-A1B": ("lfm2", "think"),
    "vllm/tool_chat_template_llama3.2_pythonic": ("pythonic", ""),
    "vllm/tool_chat_template_llama4_pythonic": ("pythonic", ""),
    "vllm/tool_chat_template_llama3.1_json": ("llama3_json", ""),
    "vllm/tool_chat_template_deepseekv3": ("deepseek_v3", ""),
    "vllm/tool_chat_template_glm4": ("glm45", ""),
    "vllm/tool_chat_template_hermes": ("hermes", ""),
    "vllm/tool_chat_template_qwen3coder": ("qwen3_coder", ""),
}
# Templates that write a call and its end token; (name, end, several calls at once)
WRITERS = [("Qwen-Qwen2.5-7B-Instruct", "<|im_end|>", True), ("ibm-granite-granite-4.1", "<|end_of_text|>", True),
           ("Qwen3-Coder", "<|im_end|>", True), ("meta-llama-Llama-3.2-3B-Instruct", "<|eot_id|>", False),
           ("mistralai-Mistral-Nemo-Instruct-2407", "</s>", True),
           ("Mistral-Small-3.2-24B-Instruct-2506", "</s>", True), ("unsloth-mistral-Devstral-Small-2507", "</s>", True),
           ("deepseek-ai-DeepSeek-V3.1", "<｜end▁of▁sentence｜>", True),
           ("MiniMax-M2", "[e~[", True),
           ("vllm/tool_chat_template_hermes", "<|im_end|>", True), ("GLM-4.7-Flash", None, True)]
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Look.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"},
                                     "deep": {"type": "object", "properties": {"a": {"type": "boolean"}},
                                              "required": ["a"], "additionalProperties": False}},
    "required": ["city"]}}}, {"type": "function", "function": {"name": "now", "description": "Now.", "parameters": {
        "type": "object", "properties": {}}}}]
CALLS = [("weather", {"city": "Pa\"ris é", "days": 3, "deep": {"a": True}}), ("now", {})]


def read(source, prompt="", text="", tools=()):
    lib = ctypes.CDLL(str(LIB))
    lib.quern_tools_read.restype = ctypes.c_size_t
    lib.quern_tools_read.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    body = json.dumps({"template": source, "prompt": prompt, "text": text, "tools": list(tools)}).encode()
    out = ctypes.create_string_buffer(1 << 20)
    n = lib.quern_tools_read(body, len(body), out, len(out))
    assert n > 0
    return json.loads(out.raw[:n])


def source_of(name):
    return (TEMPLATES / f"{name}.jinja").read_text()


@needs_templates
@pytest.mark.parametrize("name", FOUND)
def test_the_syntax_is_found_in_the_template(name):
    got = read(source_of(name))
    assert (got["calls"], got["reasoning"]) == FOUND[name] and not got["guest"]


@needs_templates
def test_templates_without_tools_have_guests():
    for name in ("microsoft-Phi-3.5-mini-instruct", "vllm/template_chatml", "llama-cpp-rwkv-world"):
        got = read(source_of(name))
        assert got["calls"] == "hermes" and got["guest"]


def written(source, calls):
    """(prompt, what the assistant wrote) for a turn with these calls."""
    case = {"messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS, "add_generation_prompt": True,
            "tokens": {"bos_token": "<s>", "eos_token": "</s>"}}
    prompt, _, why = Quern().render(source, case)
    assert prompt is not None, why
    turn = {"role": "assistant", "content": "", "tool_calls": [
        {"id": f"abcdefgh{i}", "type": "function", "function": {"name": n, "arguments": a}}
        for i, (n, a) in enumerate(calls)]}
    case = {**case, "messages": case["messages"] + [turn], "add_generation_prompt": False}
    whole, _, why = Quern().render(source, case)
    assert whole is not None, why
    return prompt, whole


@needs_templates
@pytest.mark.parametrize("name,end,many", WRITERS, ids=[w[0] for w in WRITERS])
@pytest.mark.parametrize("n", [1, 2])
def test_what_templates_write_is_read_and_allowed(name, end, many, n):
    if n > 1 and not many:
        pytest.skip("the template takes one call at a time")
    source, calls = source_of(name), CALLS[:n]
    prompt, whole = written(source, calls)
    opened = "<think>" if prompt.rstrip().endswith("<think>") else ""
    base = prompt.rstrip()[:-len(opened)] if opened else prompt
    start = len(base) if whole.startswith(base) else len(base.rstrip())
    assert whole.startswith(base[:start]), (base, whole)
    text = whole[start:]
    if end is not None:
        assert end in text
        text = text[:text.rindex(end)]
    text = text.removeprefix("</think>").strip("\n") if opened else text.lstrip("\n")
    closed = base[:start] + "</think>" if opened else prompt
    tools = [t["function"] for t in TOOLS]
    got = read(source, closed, text, tools)
    events = got["events"]
    names = [e[1] for e in events if e[0] == "begin"]
    args, current = [], ""
    for e in events:
        if e[0] == "args":
            current += e[1]
        elif e[0] == "end":
            args.append(json.loads(current))
            current = ""
    assert list(zip(names, args)) == calls, (text, got)
    assert not "".join(e[1] for e in events if e[0] == "content").strip(), events
    if name != "mistralai-Mistral-Nemo-Instruct-2407":  # it adds ids, which models do not write
        assert got["required"] and got["auto"], (text, got)
