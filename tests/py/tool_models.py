"""The tiny model under other chat templates and with further tokens, and small templates in the syntaxes of public
models."""
import json
import shutil

from cli_models import REPO

TINY_HF = REPO / "tests" / "data" / "tiny" / "tiny-1m-hf"

CHATML_HEAD = """{%- if tools %}{{- '<|im_start|>system\\nTools:' }}{%- for t in tools %}{{- '\\n' + (t | tojson) }}\
{%- endfor %}{{- '<|im_end|>\\n' }}{%- endif %}"""
CHATML_REST = """{%- elif m.role == 'tool' %}{{- '<|im_start|>user\\n<tool_response>\\n' + m.content + \
'\\n</tool_response><|im_end|>\\n' }}\
{%- else %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}\
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

HERMES = CHATML_HEAD + """{%- for m in messages %}{%- if m.tool_calls %}{{- '<|im_start|>assistant\\n' }}\
{%- if m.content %}{{- m.content + '\\n' }}{%- endif %}{%- for c in m.tool_calls %}{%- if not loop.first %}{{- '\\n' }}\
{%- endif %}{{- '<tool_call>\\n{"name": "' + c.function.name + '", "arguments": ' }}\
{{- c.function.arguments | tojson }}{{- '}\\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\\n' }}""" + CHATML_REST

LLAMA3 = CHATML_HEAD + """{#- Respond in the format {"name": function name, "parameters": dictionary of argument name \
and its value}. #}{%- for m in messages %}{%- if 'tool_calls' in m %}{%- set c = m.tool_calls[0].function %}\
{{- '<|im_start|>assistant\\n{"name": "' + c.name + '", "parameters": ' }}{{- c.arguments | tojson }}\
{{- '}<|im_end|>\\n' }}""" + CHATML_REST

QWEN3_CODER = CHATML_HEAD + """{%- for m in messages %}{%- if m.tool_calls %}{{- '<|im_start|>assistant\\n' }}\
{%- for c in m.tool_calls %}{%- if not loop.first %}{{- '\\n' }}{%- endif %}\
{{- '<tool_call>\\n<function=' + c.function.name + '>\\n' }}\
{%- for k, v in c.function.arguments | items %}{{- '<parameter=' + k + '>\\n' }}\
{{- v if v is string else v | tojson }}{{- '\\n</parameter>\\n' }}{%- endfor %}{{- '</function>\\n</tool_call>' }}\
{%- endfor %}{{- '<|im_end|>\\n' }}""" + CHATML_REST

# Thinking: the template opens it unless it is told not to.
THINKER = HERMES.replace("{{- '<|im_start|>assistant\\n' }}{%- endif %}", """{{- '<|im_start|>assistant\\n' }}\
{{- '<think>\\n\\n</think>\\n\\n' if enable_thinking is defined and not enable_thinking else '<think>\\n' }}\
{%- endif %}""")

# Channels: the prompt ends where a header begins.
HARMONY = """{%- for m in messages %}{{- '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{%- endfor %}\
{#- <|channel|>analysis <|channel|>commentary #}\
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}"""
HARMONY_TOKENS = [(f"<|{name}|>", True)
                  for name in ("start", "channel", "message", "end", "call", "return", "constrain")]


def make_minimind(folder, shared, template):
    """The small chat model of the shared data under a public template."""
    to = folder / "model"
    to.mkdir()
    for f in (shared / "data" / "models" / "minimind2-small-f16").iterdir():
        shutil.copyfile(f, to / f.name)
    config = json.loads((to / "tokenizer_config.json").read_text())
    config["chat_template"] = (shared / "data" / "chat-templates" / f"{template}.jinja").read_text()
    (to / "tokenizer_config.json").write_text(json.dumps(config))
    return to


def make_model(folder, template, tokens=()):
    """A copy of the tiny model with that template; tokens are (name, is_special): they take the place of the last ones
    of the vocabulary."""
    to = folder / "model"
    shutil.copytree(TINY_HF, to)
    config = json.loads((to / "tokenizer_config.json").read_text())
    config["chat_template"] = template
    (to / "tokenizer_config.json").write_text(json.dumps(config))
    tok = json.loads((to / "tokenizer.json").read_text())
    vocab, merges = tok["model"]["vocab"], tok["model"]["merges"]
    for name, is_special in tokens:
        last, i = max(vocab.items(), key=lambda kv: kv[1] if kv[0] not in {t["content"] for t in tok["added_tokens"]}
                      else -1)
        del vocab[last]
        vocab[name] = i
        merges[:] = [m for m in merges if "".join(m) != last and last not in m]
        tok["added_tokens"].append(dict(id=i, content=name, single_word=False, lstrip=False, rstrip=False,
                                        normalized=False, special=is_special))
    (to / "tokenizer.json").write_text(json.dumps(tok))
    return to
