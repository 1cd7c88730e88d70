"""Every field that vLLM's clients send is honoured, or refused by its name; nothing is quietly dropped that would
change the answer. And every name that vLLM's dashboards and routers read is there, with its type, labels and buckets.
"""
import re

import pytest

from server_quern import Quern

HELLO = [{"role": "user", "content": "Hello there"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}

# What the values ask for must be possible on the tiny model.
HONOURED = {
    "frequency_penalty": 0.5, "presence_penalty": 0.5, "logit_bias": {"5": -1}, "logprobs": True, "top_logprobs": None,
    "max_tokens": 2, "max_completion_tokens": 2, "n": 2, "response_format": {"type": "text"}, "seed": 3, "stop": "zzz",
    "stream": False, "stream_options": None, "temperature": 0.5, "top_p": 0.5, "tools": None, "tool_choice": "none",
    "parallel_tool_calls": True, "reasoning_effort": "low", "user": "u", "top_k": 3, "min_p": 0.1,
    "repetition_penalty": 1.1, "length_penalty": 1.0, "stop_token_ids": [5], "include_stop_str_in_output": True,
    "ignore_eos": True, "min_tokens": 1, "skip_special_tokens": False, "spaces_between_special_tokens": False,
    "truncate_prompt_tokens": -1, "prompt_logprobs": 1, "allowed_token_ids": [5, 6], "echo": False,
    "add_generation_prompt": True, "continue_final_message": False, "add_special_tokens": False, "documents": [],
    "chat_template_kwargs": {"a": 1}, "structured_outputs": {"choice": ["a", "b"]}, "priority": 1, "request_id": "r-1",
    "session_id": "s", "return_tokens_as_token_ids": True, "return_token_ids": True, "cache_salt": "s",
    "stream_interval": 2, "include_reasoning": True, "modalities": ["text"], "service_tier": "auto", "metadata": {}}

REFUSED = {
    "length_penalty": 1.5, "logprob_token_ids": [5], "bad_words": ["x"], "echo": True, "continue_final_message": True,
    "chat_template": "{{ 1 }}", "mm_processor_kwargs": {"a": 1}, "kv_transfer_params": {"do_remote_decode": True},
    "vllm_xargs": {"a": 1}, "repetition_detection": {"max": 3}, "modalities": ["text", "audio"],
    "audio": {"voice": "a"}, "use_beam_search": True,
    "best_of": 3, "functions": [{"name": "f"}], "function_call": "auto", "store": True,
    "web_search_options": {}, "prompt_embeds": "AAAA", "suffix": "x", "structural_tag": {"a": 1},
    "truncate_prompt_tokens": 0, "spaces_between_special_tokens": "yes"}


@pytest.fixture(scope="module")
def quern():
    with Quern() as q:
        yield q


@pytest.mark.parametrize("field", sorted(HONOURED))
def test_fields_that_are_honoured(quern, field):
    body = {"messages": HELLO, "max_tokens": 2, field: HONOURED[field]}
    status, answer = quern.post("/v1/chat/completions", **body)
    assert status == 200, (field, answer)


@pytest.mark.parametrize("field", sorted(REFUSED))
def test_fields_that_are_refused_by_name(quern, field):
    status, answer = quern.post("/v1/chat/completions", messages=HELLO, max_tokens=2, **{field: REFUSED[field]})
    assert status == 400 and answer["error"]["param"] == field, (field, answer)
    assert field in answer["error"]["message"]


def test_fields_of_the_wrong_type_are_named(quern):
    for field in HONOURED:
        if field in ("user", "session_id", "service_tier", "metadata", "reasoning_effort"):
            continue  # ignored, or the template's
        status, answer = quern.post("/v1/chat/completions", messages=HELLO, **{field: {"wrong": ["type"]}})
        if status == 200 and field in ("chat_template_kwargs",):
            continue  # an object is right
        assert status == 400 and answer["error"]["param"].startswith(field), (field, status, answer)


def test_a_prompt_is_cut_to_what_the_context_has_room_for(quern):
    limit = quern.call("/v1/models")[2]["data"][0]["max_model_len"]
    text = "word " * (2 * limit)
    assert quern.post("/v1/completions", prompt=text, max_tokens=1)[0] == 400
    status, answer = quern.post("/v1/completions", prompt=text, max_tokens=1, truncate_prompt_tokens=-1)
    assert status == 200 and answer["usage"]["prompt_tokens"] == limit - 1


# ---- numbers ----

GAUGES = ["num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason", "kv_cache_usage_perc",
          "engine_sleep_state", "cache_config_info"]
COUNTERS = ["num_preemptions", "prompt_tokens", "prompt_tokens_by_source", "prompt_tokens_cached", "generation_tokens",
            "request_success", "prefix_cache_queries", "prefix_cache_hits", "spec_decode_num_drafts",
            "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens",
            "spec_decode_num_accepted_tokens_per_pos"]
TTFT = "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160 640 2560"
ITL = "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80"
E2E = "0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680"
HISTOGRAMS = {"time_to_first_token_seconds": TTFT, "inter_token_latency_seconds": ITL,
              "time_per_output_token_seconds": ITL, "request_time_per_output_token_seconds": ITL,
              "e2e_request_latency_seconds": E2E, "request_queue_time_seconds": E2E,
              "request_inference_time_seconds": E2E, "request_prefill_time_seconds": E2E,
              "request_decode_time_seconds": E2E, "request_prompt_tokens": None, "request_generation_tokens": None,
              "request_max_num_generation_tokens": None, "request_params_max_tokens": None,
              "request_prefill_kv_computed_tokens": None, "request_params_n": "1 2 5 10 20",
              "iteration_tokens_total": None}


def samples(text, name):
    """{labels beside the model's: value}"""
    found = re.findall(rf'^{re.escape(name)}{{model_name="[^"]+",engine="0"(?:,([^}}]*))?}} (\S+)$', text, re.M)
    return {labels: float(value) for labels, value in found}


def test_metrics_are_those_of_vllm(quern):
    before = quern.call("/metrics")[2].decode()
    quern.post("/v1/completions", prompt=list(range(40)), max_tokens=5, n=2, ignore_eos=True, cache_salt="metrics")
    quern.post("/v1/completions", prompt=list(range(40)), max_tokens=3, ignore_eos=True, cache_salt="metrics")
    text = quern.call("/metrics")[2].decode()
    for name in GAUGES:
        assert f"# TYPE vllm:{name} gauge" in text and samples(text, f"vllm:{name}"), name
    for name in COUNTERS:
        assert f"# TYPE vllm:{name}_total counter" in text and samples(text, f"vllm:{name}_total"), name
    for name, buckets in HISTOGRAMS.items():
        assert f"# TYPE vllm:{name} histogram" in text, name
        found = [re.search(r'le="([^"]+)"', k).group(1) for k in samples(text, f"vllm:{name}_bucket")]
        assert found[-1] == "+Inf" and (buckets is None or found[:-1] == buckets.split()), (name, found)
        assert samples(text, f"vllm:{name}_count")[""] == samples(text, f"vllm:{name}_bucket")['le="+Inf"'], name

    def grew(name, labels=""):
        return samples(text, name)[labels] - samples(before, name)[labels]
    assert grew("vllm:prompt_tokens_by_source_total", 'source="local_cache_hit"') == 32
    assert grew("vllm:prompt_tokens_by_source_total", 'source="local_compute"') == 48
    assert grew("vllm:request_max_num_generation_tokens_sum") == 8
    assert grew("vllm:request_generation_tokens_sum") == 13
    assert grew("vllm:request_prefill_kv_computed_tokens_sum") == 48


def test_an_evicted_prefix_comes_back_from_the_host():
    """Prompts of 6 blocks in a cache of 12: the first goes to the swap space and is found there; it says the same."""
    with Quern("--num-gpu-blocks-override", 12, "--max-model-len", 160, "--max-num-seqs", 1) as q:
        def ask(i):
            status, answer = q.post("/v1/completions", prompt=[i * 100 + k for k in range(96)], max_tokens=8,
                                    temperature=0, ignore_eos=True, return_token_ids=True)
            assert status == 200, answer
            return answer["choices"][0]["token_ids"]
        first = ask(0)
        for i in range(1, 5):
            ask(i)
        assert ask(0) == first
        text = q.call("/metrics")[2].decode()
        assert samples(text, "quern_prefix_kept_blocks_total")[""] >= 6
        assert samples(text, "quern_prefix_restored_blocks_total")[""] == 6
        assert samples(text, "quern_prefix_host_hits_total")[""] == 1
        assert samples(text, "quern_host_cached_blocks")[""] > 0
