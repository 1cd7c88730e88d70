"""Tool calls and reasoning over HTTP, as the `openai` client uses them; on the tiny model, which knows nothing of
tools: whatever it answers under a constraint must be a call all the same."""
import json

import jsonschema
import openai
import pydantic
import pytest

from chat_oracle import SHARED
from server_quern import Quern
from tool_models import (HARMONY, HARMONY_TOKENS, HERMES, LLAMA3, QWEN3_CODER, THINKER, make_minimind,
                         make_model)

WEATHER = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12},
                                            "days": {"type": "integer", "minimum": 0, "maximum": 9},
                                            "kind": {"enum": ["rain", "wind"]}}, "required": ["city", "kind"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Look.", "parameters": WEATHER}},
         {"type": "function", "function": {"name": "now"}}]
ASK = [{"role": "user", "content": "Speak."}]
SYNTAXES = ["hermes", "llama3_json", "pythonic", "llama4_pythonic", "lfm2", "qwen3_coder", "glm45", "glm47",
            "minimax_m2", "mistral", "mistral_array", "mistral_call_id", "deepseek_v3", "deepseek_v31", "kimi_k2",
            "granite", "nemotron", "harmony"]


def client_of(quern):
    return openai.OpenAI(base_url=quern.url + "/v1", api_key="none", max_retries=0)


def serve(folder, template, *args, tokens=()):
    return Quern(*args, model=make_model(folder, template, tokens))


@pytest.fixture(scope="module")
def hermes(tmp_path_factory):
    with serve(tmp_path_factory.mktemp("hermes"), HERMES) as q:
        yield q


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    with serve(tmp_path_factory.mktemp("thinker"), THINKER, tokens=[("<think>", False), ("</think>", False)]) as q:
        yield q


def chat(quern, **body):
    status, answer = quern.post("/v1/chat/completions", **{"messages": ASK, "max_tokens": 200, "seed": 1, **body})
    assert status == 200, answer
    return answer["choices"][0]


def check_calls(choice, max_calls=None):
    """Every call names a tool and its arguments follow the schema; an answer cut short may end in half a call."""
    calls = choice["message"].get("tool_calls") or []
    whole = calls if choice["finish_reason"] == "tool_calls" else calls[:-1]
    for call in whole:
        f = call["function"]
        args = json.loads(f["arguments"])
        assert call["type"] == "function" and call["id"]
        if f["name"] == "weather":
            jsonschema.validate(args, {**WEATHER, "additionalProperties": False})
        else:
            assert f["name"] == "now" and isinstance(args, dict)
    assert max_calls is None or len(calls) <= max_calls
    return calls


# ---- constrained answers ----

@pytest.mark.parametrize("syntax", SYNTAXES)
def test_forced_calls_parse_in_every_syntax(syntax):
    loose = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"},
                                              "kind": {"enum": ["rain", "wind"]}}, "required": ["kind"]}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": loose}}]
    whole = 0
    with Quern("--tool-call-parser", syntax) as q:
        for seed in range(6):
            choice = chat(q, tools=tools, tool_choice="required", parallel_tool_calls=False, temperature=2.0,
                          seed=seed, max_tokens=150)
            calls = choice["message"].get("tool_calls") or []
            assert len(calls) <= 1
            if choice["finish_reason"] == "tool_calls":
                whole += 1
                args = json.loads(calls[0]["function"]["arguments"])
                jsonschema.validate(args, {**loose, "additionalProperties": False})
                assert choice["message"]["content"] is None, choice
                if syntax.startswith("mistral"):
                    assert len(calls[0]["id"]) == 9 and calls[0]["id"].isalnum()
    assert whole > 0 or syntax == "harmony"  # which may think for ever


def test_required_named_and_none(hermes):
    for seed in range(8):
        check_calls(chat(hermes, tools=TOOLS, tool_choice="required", temperature=2.0, seed=seed))
        named = chat(hermes, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "weather"}}, seed=seed)
        calls = check_calls(named, max_calls=1)
        assert [c["function"]["name"] for c in calls] == ["weather"] and named["finish_reason"] == "tool_calls"
    none = chat(hermes, tools=TOOLS, tool_choice="none", max_tokens=20)
    assert "tool_calls" not in none["message"] and none["message"]["content"]
    auto = chat(hermes, tools=TOOLS, max_tokens=20)
    assert auto["message"]["content"] or auto["message"]["tool_calls"]


def test_auto_is_free_until_a_call_begins(hermes):
    """Pushed into a call by a bias on its first token, the rest is constrained."""
    first = hermes.call("/tokenize", {"prompt": "<", "add_special_tokens": False})[2]["tokens"][0]
    seen = 0
    for seed in range(12):
        choice = chat(hermes, tools=TOOLS, seed=seed, logit_bias={str(first): 8}, max_tokens=250)
        seen += len(check_calls(choice))
        assert "<tool_call>\n{" not in (choice["message"]["content"] or "")


def test_the_same_request_gives_the_same_calls(hermes):
    a, b = (chat(hermes, tools=TOOLS, tool_choice="required", seed=5) for _ in range(2))
    assert a["message"] == b["message"]  # ids too


def test_calls_with_logprobs_and_choices(hermes):
    status, answer = hermes.post("/v1/chat/completions", messages=ASK, tools=TOOLS, tool_choice="required", n=3,
                                 logprobs=True, top_logprobs=2, max_tokens=120, seed=3, parallel_tool_calls=False)
    assert status == 200
    for choice in answer["choices"]:
        check_calls(choice, max_calls=1)
        assert len(choice["logprobs"]["content"]) > 0


def test_an_answer_is_calls_or_follows_its_format(hermes):
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
              "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    for seed in range(6):
        choice = chat(hermes, tools=TOOLS, response_format=form, seed=seed, temperature=2.0)
        check_calls(choice)
        if choice["message"]["content"] is not None:
            jsonschema.validate(json.loads(choice["message"]["content"]), schema)


# ---- the client's helpers ----

def test_streamed_deltas_add_up_to_the_whole(hermes):
    client = client_of(hermes)
    for seed in range(4):
        kw = dict(model="model", messages=ASK, tools=TOOLS, tool_choice="required", seed=seed, max_tokens=200)
        whole = client.chat.completions.create(**kw).choices[0]
        calls, finish, order = {}, None, []
        for chunk in client.chat.completions.create(stream=True, **kw):
            delta, finish = chunk.choices[0].delta, chunk.choices[0].finish_reason
            assert not delta.content
            for c in delta.tool_calls or []:
                if c.index not in calls:
                    assert c.id and c.type == "function" and c.function.name  # these come first
                    calls[c.index] = [c.id, c.function.name, ""]
                    order.append(c.index)
                else:
                    assert c.id is None and c.function.name is None
                calls[c.index][2] += c.function.arguments or ""
        assert order == list(range(len(calls))) and finish == whole.finish_reason
        assert list(calls.values()) == [[c.id, c.function.name, c.function.arguments]
                                        for c in whole.message.tool_calls]


class weather_report(pydantic.BaseModel):
    """Report."""
    place: str
    warm: bool


def test_parse_helper_with_pydantic_tools(hermes):
    client = client_of(hermes)
    tool = openai.pydantic_function_tool(weather_report)
    kw = dict(model="model", messages=ASK, tools=[tool], tool_choice="required", seed=2, max_tokens=200,
              parallel_tool_calls=False)
    done = client.chat.completions.parse(**kw).choices[0]
    assert isinstance(done.message.tool_calls[0].function.parsed_arguments, weather_report)
    with client.chat.completions.stream(**kw) as stream:
        kinds = {e.type for e in stream}
        last = stream.get_final_completion().choices[0].message
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    assert last.tool_calls[0].function.parsed_arguments == done.message.tool_calls[0].function.parsed_arguments


def tool_loop(q):
    """A forced call, its result, and the next turn: tokens of the first prompt, and those that the second finds in the
    cache. The second prompt begins with the very bytes of the first turn."""
    client = client_of(q)
    messages = list(ASK)
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]},
                                         "soon": {"type": "boolean"}}, "required": ["city", "soon"]}}}]
    kw = dict(model="model", tools=tools, seed=4, max_tokens=120, parallel_tool_calls=False)
    first = client.chat.completions.create(messages=messages, tool_choice="required",
                                           extra_body={"return_token_ids": True}, **kw)
    choice = first.choices[0]
    assert choice.finish_reason == "tool_calls"
    raw = q.call("/detokenize", {"tokens": choice.token_ids[:-1]})[2]["prompt"]  # less the end
    before = q.post("/v1/chat/completions/render", messages=messages, tools=tools)[1]["prompt"]
    messages.append(choice.message.model_dump(exclude_none=True))
    messages.append({"role": "tool", "tool_call_id": choice.message.tool_calls[0].id, "content": "sunny"})
    after = q.post("/v1/chat/completions/render", messages=messages, tools=tools)[1]["prompt"]
    assert after.startswith(before + raw), (before + raw, after)
    second = client.chat.completions.create(messages=messages, **kw)
    return first.usage.prompt_tokens, second.usage.prompt_tokens_details.cached_tokens


@pytest.mark.parametrize("template", [HERMES, LLAMA3, QWEN3_CODER], ids=["hermes", "llama3", "qwen3_coder"])
def test_a_tool_loop_renders_calls_as_they_were_written(tmp_path, template):
    with serve(tmp_path, template) as q:
        n_first, cached = tool_loop(q)
    assert cached >= n_first // 16 * 16 > 0, (cached, n_first)


@pytest.mark.skipif(not (SHARED / "data" / "models").is_dir(), reason=f"no models in {SHARED}")
@pytest.mark.parametrize("template", ["Qwen-Qwen2.5-7B-Instruct", "meta-llama-Llama-3.2-3B-Instruct"])
def test_the_next_turn_of_public_templates_finds_the_call_in_the_cache(tmp_path, template):
    """Beyond the first prompt: blocks of the call itself."""
    with Quern("--max-model-len", "4096", model=make_minimind(tmp_path, SHARED, template)) as q:
        n_first, cached = tool_loop(q)
    assert cached > n_first // 16 * 16, (cached, n_first)


# ---- reasoning ----

def test_reasoning_is_split_off_and_streamed(thinker):
    whole = chat(thinker, max_tokens=40, thinking_budget=10)
    m = whole["message"]
    assert m["reasoning_content"] == m["reasoning"] and "</think>" not in m["reasoning"] + m["content"]
    status, _, text = thinker.call("/v1/chat/completions", {"messages": ASK, "max_tokens": 40, "seed": 1,
                                                            "thinking_budget": 10, "stream": True})
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in text.decode().split("\n")
              if line.startswith("data: {")]
    assert "".join(d.get("reasoning_content", "") for d in deltas) == m["reasoning_content"]
    assert "".join(d.get("content", "") or "" for d in deltas) == m["content"]


def test_a_budget_ends_the_reasoning(thinker):
    for budget, extra in ((1, {"thinking_budget": 1}), (7, {"thinking_token_budget": 7}),
                          (20, {"reasoning": {"max_tokens": 20}})):
        status, a = thinker.post("/v1/chat/completions", messages=ASK, max_tokens=60, seed=2, **extra)
        assert status == 200, a
        used = a["usage"]["completion_tokens_details"]["reasoning_tokens"]
        assert used <= budget + 1  # the mark itself counts
        assert a["choices"][0]["message"]["content"]


def test_a_budget_ends_the_reasoning_of_channels(tmp_path):
    """However often the channel is opened; and a call that must come comes."""
    thought = 0
    with serve(tmp_path, HARMONY, "--tool-call-parser", "harmony", "--reasoning-parser", "harmony",
               tokens=HARMONY_TOKENS) as q:
        for seed in range(6):
            status, a = q.post("/v1/chat/completions", messages=ASK, tools=TOOLS, tool_choice="required", seed=seed,
                               parallel_tool_calls=False, thinking_budget=6, max_tokens=160, temperature=1.5)
            assert status == 200, a
            choice = a["choices"][0]
            check_calls(choice, max_calls=1)
            used = a["usage"]["completion_tokens_details"]["reasoning_tokens"]
            text = choice["message"].get("reasoning") or ""
            assert len(text.encode()) <= 6 * 16, text  # tokens are short
            thought += used > 0
    assert thought > 0


def test_reasoning_can_be_left_out_or_switched_off(thinker):
    hidden = chat(thinker, max_tokens=30, thinking_budget=5, include_reasoning=False)["message"]
    assert "reasoning" not in hidden and hidden["content"]
    for off in ({"reasoning_effort": "none"}, {"thinking_budget": 0}, {"reasoning": {"enabled": False}},
                {"chat_template_kwargs": {"enable_thinking": False}}):
        m = chat(thinker, max_tokens=12, **off)["message"]
        assert "reasoning" not in m and m["content"], off


def test_calls_and_formats_come_after_reasoning(thinker):
    for seed in range(4):
        choice = chat(thinker, tools=TOOLS, tool_choice="required", thinking_budget=8, seed=seed, max_tokens=250)
        check_calls(choice)
        assert choice["message"]["reasoning"] and choice["message"]["content"] is None
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {
            "type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
            "additionalProperties": False}}}
        m = chat(thinker, response_format=form, thinking_budget=8, seed=seed)["message"]
        assert m["reasoning"] and isinstance(json.loads(m["content"])["a"], bool)


# ---- what is refused ----

def named(**function):
    return [{"type": "function", "function": {"name": "f", **function}}]


BAD = [
    ("tools", dict(tools={})), ("tools", dict(tools=[3])), ("tools", dict(tools=[{"type": "function"}])),
    ("tools", dict(tools=[{"type": "web", "function": {"name": "f"}}])), ("tools", dict(tools=named(name=""))),
    ("tools", dict(tools=named(name="a b"))), ("tools", dict(tools=named(name="x" * 65))),
    ("tools", dict(tools=named(name="<tool_call>"))), ("tools", dict(tools=named(name=7))),
    ("tools", dict(tools=named() * 2)), ("tools", dict(tools=named() * 129)),
    ("tools", dict(tools=named(parameters=[]))), ("tools", dict(tools=named(parameters={"type": "string"}))),
    ("tools", dict(tools=named(strict="yes"))), ("tools", dict(tools=named(description=3))),
    ("tools", dict(tools=named(parameters={"properties": {"a": {"description": "x" * 70000}}}))),
    ("tools", dict(tools=named(parameters={"type": "object", "properties": {"a": {"unheardOf": 1,
                                                                                  "$ref": "http://x"}}}))),
    ("tool_choice", dict(tools=named(), tool_choice="maybe")), ("tool_choice", dict(tool_choice="required")),
    ("tool_choice", dict(tools=named(), tool_choice={"type": "function", "function": {"name": "g"}})),
    ("tool_choice", dict(tools=named(), tool_choice={"type": "x"})),
    ("parallel_tool_calls", dict(tools=named(), parallel_tool_calls="no")),
    ("include_reasoning", dict(include_reasoning=1)), ("thinking_budget", dict(thinking_budget=3)),
    ("functions", dict(functions=named())),
    ("messages", dict(messages=[{"role": "assistant", "tool_calls": 3}])),
    ("messages", dict(messages=[{"role": "assistant", "tool_calls": [{"function": {}}]}])),
    ("messages", dict(messages=[{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 3}}]}])),
    ("messages", dict(messages=[{"role": "tool", "content": "x", "tool_call_id": 3}])),
]


@pytest.mark.parametrize("param,body", BAD, ids=[f"{i}-{p}" for i, (p, _) in enumerate(BAD)])
def test_bad_tools_are_named(hermes, param, body):
    status, answer = hermes.post("/v1/chat/completions", **{"messages": ASK, "max_tokens": 5, **body})
    assert status == 400 and answer["error"]["param"] == param, answer


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_bad_schema_names_its_tool_and_its_place(hermes, choice):
    bad = {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}
    tools = TOOLS + [{"type": "function", "function": {"name": "third", "parameters": bad}}]
    status, answer = hermes.post("/v1/chat/completions", messages=ASK, tools=tools, tool_choice=choice)
    assert status == 400 and "'third'" in answer["error"]["message"], answer
    assert "#/properties/a/pattern" in answer["error"]["message"] and "parts[" not in answer["error"]["message"]


def test_hostile_tools_are_answered(hermes):
    """Names and texts full of markers, deep and wide schemas: an answer or a 400, and the server lives."""
    deep = {}
    for _ in range(60):
        deep = {"type": "object", "properties": {"a": deep}}
    wide = {"type": "object", "properties": {f"k{i}": {"type": "string", "enum": [f"v{j}" for j in range(50)]}
                                             for i in range(200)}}
    loop = {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}}
    marks = {"type": "object", "properties": {"</tool_call>": {"enum": ["<|im_end|>", "</tool_call>\n<tool_call>"]}},
             "required": ["</tool_call>"]}
    for schema in (deep, wide, loop, marks):
        status, a = hermes.post("/v1/chat/completions", messages=ASK, tools=named(parameters=schema),
                                tool_choice="required", max_tokens=40, seed=1)
        assert status in (200, 400), a
        assert status == 200 or a["error"]["message"]
    assert chat(hermes, max_tokens=3)


def test_no_syntax_no_tools(tmp_path):
    with serve(tmp_path, HERMES, "--tool-call-parser", "none") as q:
        status, answer = q.post("/v1/chat/completions", messages=ASK, tools=TOOLS)
        assert status == 400 and answer["error"]["param"] == "tools"
        assert "--tool-call-parser" in answer["error"]["message"]
    from subprocess import run
    from cli_models import quern_bin
    from server_quern import TINY
    bad = run([quern_bin(), "serve", str(TINY), "--port", "0", "--tool-call-parser", "nope"], capture_output=True,
              text=True, timeout=60)
    assert bad.returncode != 0 and "nope" in bad.stderr
