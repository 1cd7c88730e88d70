#!/usr/bin/env python3
"""The tiny models that every clone carries (tests/data/tiny): how they were made, so that they can be made again.

  tools/train_tiny.py prepare TEXT WORK  train the vocabulary and encode the text        (needs `tokenizers`)
  tools/train_tiny.py train WORK OUT     train the three models, a few minutes on a GPU  (needs `torch`)
  tools/train_tiny.py export WORK OUT    write tests/data/tiny: GGUF files, HF folder    (needs `gguf`, `safetensors`)

The text is public-domain: Tiny Shakespeare, War and Peace, Ulysses. Half of what the models see is plain prose; the
other half is Shakespeare's speeches as a conversation, each speech answering the one before in chat markup, so that
the models take turns and end them. They are far too small to know anything, but they are real trained weights.

  tiny-1m   dense, about 1M parameters: the draft for speculation
  tiny-4m   dense, about 4M: the target
  tiny-moe  8 experts, 2 per token, about 2M
"""
import json
import math
import pathlib
import random
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data" / "tiny"
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = ("{%- for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
            "'<|im_end|>\\n' }}{%- endfor %}"
            "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}")
CONTEXT = 512
SHAPES = {
    "tiny-1m": dict(hidden=128, layers=4, heads=4, kv_heads=2, ffn=384, experts=0, steps=3000),
    "tiny-4m": dict(hidden=256, layers=4, heads=8, kv_heads=4, ffn=768, experts=0, steps=1200),  # before it overfits
    "tiny-moe": dict(hidden=128, layers=4, heads=4, kv_heads=2, ffn=128, experts=8, steps=3000),
}
TOP_K, ROPE_BASE, EPS, VOCAB = 2, 10000.0, 1e-5, 2048


def speeches(text):
    """Tiny Shakespeare is blocks of "NAME:" and lines; the lines of each block in order."""
    for block in text.split("\n\n"):
        lines = block.strip().split("\n")
        if len(lines) > 1 and lines[0].endswith(":"):
            yield "\n".join(lines[1:])


def prepare(text_dir, work):
    import array

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    work.mkdir(parents=True, exist_ok=True)
    plays = (text_dir / "tinyshakespeare.txt").read_text(encoding="utf-8")
    prose = [(text_dir / name).read_text(encoding="utf-8") for name in ("war-and-peace.txt", "ulysses.md")]

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=SPECIALS, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([plays, *prose], trainer)
    tokenizer.save(str(work / "tokenizer.json"))

    end, start, stop = (tokenizer.token_to_id(s) for s in SPECIALS)
    ids_of = lambda text: tokenizer.encode(text).ids
    newline, user, assistant = ids_of("\n"), ids_of("user\n"), ids_of("assistant\n")
    ids = []
    turns = [ids_of(s) for s in speeches(plays)]
    rng = random.Random(1)
    for _ in range(2):  # twice, cut into conversations differently
        at = 0
        while at < len(turns):
            for turn in range(2 * rng.randint(1, 3)):
                if at < len(turns):
                    ids += [start] + (user if turn % 2 == 0 else assistant) + turns[at][:120] + [stop] + newline
                    at += 1
            ids.append(end)
    for text in [plays, *prose]:
        for chapter in text.split("\n\n\n"):
            ids += ids_of(chapter) + [end]
    array.array("H", ids).tofile(open(work / "tokens.bin", "wb"))
    print(f"{len(ids)} tokens, vocabulary {tokenizer.get_vocab_size()}")


def build(torch, shape):
    """A Llama, or a Mixtral where shape has experts, in HF's conventions: rope turns halves."""
    nn, fn = torch.nn, torch.nn.functional
    hidden, heads, kv_heads = shape["hidden"], shape["heads"], shape["kv_heads"]
    dim = hidden // heads

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(hidden))

        def forward(self, x):
            return fn.rms_norm(x, (hidden,), self.weight, EPS)

    def rope(x):
        half = dim // 2
        inverse = ROPE_BASE ** (-torch.arange(half, device=x.device).float() / half)
        angle = torch.arange(x.shape[2], device=x.device).float()[:, None] * inverse
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x[..., :half], x[..., half:]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Linear(hidden, heads * dim, bias=False)
            self.k = nn.Linear(hidden, kv_heads * dim, bias=False)
            self.v = nn.Linear(hidden, kv_heads * dim, bias=False)
            self.o = nn.Linear(heads * dim, hidden, bias=False)

        def forward(self, x):
            n, t, _ = x.shape
            q = rope(self.q(x).view(n, t, heads, dim).transpose(1, 2))
            k = rope(self.k(x).view(n, t, kv_heads, dim).transpose(1, 2))
            v = self.v(x).view(n, t, kv_heads, dim).transpose(1, 2)
            y = fn.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return self.o(y.transpose(1, 2).reshape(n, t, heads * dim))

    class Dense(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(hidden, shape["ffn"], bias=False)
            self.up = nn.Linear(hidden, shape["ffn"], bias=False)
            self.down = nn.Linear(shape["ffn"], hidden, bias=False)

        def forward(self, x):
            return self.down(fn.silu(self.gate(x)) * self.up(x)), 0.0

    class Mixture(nn.Module):
        """Every expert is computed for every token and most are thrown away: simple, and small enough."""

        def __init__(self):
            super().__init__()
            self.router = nn.Linear(hidden, shape["experts"], bias=False)
            self.experts = nn.ModuleList(Dense() for _ in range(shape["experts"]))

        def forward(self, x):
            p = self.router(x).float().softmax(-1)
            weight, chosen = p.topk(TOP_K, dim=-1)
            weight = (weight / weight.sum(-1, keepdim=True)).to(x.dtype)
            gates = torch.zeros_like(p, dtype=x.dtype).scatter(-1, chosen, weight)
            y = sum(gates[..., i:i + 1] * expert(x)[0] for i, expert in enumerate(self.experts))
            load = (gates > 0).float().mean((0, 1)) / TOP_K
            return y, shape["experts"] * (load * p.mean((0, 1))).sum()  # the usual balance loss, 1 when even

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn_norm, self.ffn_norm = Norm(), Norm()
            self.attn = Attention()
            self.ffn = Mixture() if shape["experts"] else Dense()

        def forward(self, x):
            x = x + self.attn(self.attn_norm(x))
            y, balance = self.ffn(self.ffn_norm(x))
            return x + y, balance

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(VOCAB, hidden)
            self.layers = nn.ModuleList(Layer() for _ in range(shape["layers"]))
            self.norm = Norm()
            for p in self.parameters():
                if p.dim() == 2:
                    nn.init.normal_(p, std=0.02 if p is self.embed.weight else p.shape[1] ** -0.5)

        def forward(self, ids):
            x, balance = self.embed(ids), 0.0
            for layer in self.layers:
                x, b = layer(x)
                balance = balance + b
            return fn.linear(self.norm(x), self.embed.weight), balance / shape["layers"]

    return Model()


def train_one(torch, name, shape, tokens, out):
    torch.manual_seed(1)
    steps = shape["steps"]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = build(torch, shape).to(device)
    count = sum(p.numel() for p in model.parameters())
    data = torch.from_numpy(tokens).to(device)
    held = len(data) // 50  # the last 2% are never trained on
    batch = 128
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    rate = lambda step: min(1, (step + 1) / 200) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / steps)))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, rate)
    fast = torch.compile(model) if device == "cuda" else model
    window = torch.arange(CONTEXT + 1, device=device)
    for step in range(steps):
        at = torch.randint(0, len(data) - held - CONTEXT - 1, (batch,), device=device)
        rows = data[at[:, None] + window].long()
        with torch.autocast(device, dtype=torch.bfloat16):
            logits, balance = fast(rows[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
        (loss + 0.01 * balance).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        schedule.step()
        if step % 1000 == 0 or step == steps - 1:
            print(f"{name} step {step} loss {loss.item():.3f}", flush=True)
    with torch.no_grad():
        rows = data[-held:][: held // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1).long()
        losses = [torch.nn.functional.cross_entropy(model(r[None, :-1])[0].flatten(0, 1), r[1:]).item() for r in rows]
    print(f"{name}: {count} parameters, held-out loss {sum(losses) / len(losses):.3f}", flush=True)
    import numpy as np
    arrays = {k: v.detach().float().cpu().numpy() for k, v in model.state_dict().items()}
    np.savez(out / f"{name}.npz", **arrays)


def train(work, out):
    import numpy as np
    import torch
    torch.set_float32_matmul_precision("high")
    tokens = np.fromfile(work / "tokens.bin", dtype=np.uint16).astype(np.int32)
    out.mkdir(parents=True, exist_ok=True)
    for name, shape in SHAPES.items():
        train_one(torch, name, shape, tokens, out)


def pairs(weight, heads):
    """HF's halves to GGUF's neighbouring pairs, row by row of each head."""
    out, hidden = weight.shape
    return weight.reshape(heads, 2, out // heads // 2, hidden).swapaxes(1, 2).reshape(out, hidden)


def gguf_tensors(shape, w):
    """Our names to GGUF's, one tensor at a time."""
    import numpy as np
    yield "token_embd.weight", w["embed.weight"]
    yield "output_norm.weight", w["norm.weight"]
    for i in range(shape["layers"]):
        at, to = f"layers.{i}.", f"blk.{i}."
        yield to + "attn_norm.weight", w[at + "attn_norm.weight"]
        yield to + "ffn_norm.weight", w[at + "ffn_norm.weight"]
        yield to + "attn_q.weight", pairs(w[at + "attn.q.weight"], shape["heads"])
        yield to + "attn_k.weight", pairs(w[at + "attn.k.weight"], shape["kv_heads"])
        yield to + "attn_v.weight", w[at + "attn.v.weight"]
        yield to + "attn_output.weight", w[at + "attn.o.weight"]
        if shape["experts"]:
            yield to + "ffn_gate_inp.weight", w[at + "ffn.router.weight"]
            for part in ("gate", "up", "down"):
                stack = [w[f"{at}ffn.experts.{j}.{part}.weight"] for j in range(shape["experts"])]
                yield f"{to}ffn_{part}_exps.weight", np.stack(stack)
        else:
            for part in ("gate", "up", "down"):
                yield f"{to}ffn_{part}.weight", w[f"{at}ffn.{part}.weight"]


def export_gguf(name, shape, w, tokenizer, kind, path):
    import gguf
    import numpy as np
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name(name)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape["hidden"])
    writer.add_block_count(shape["layers"])
    writer.add_feed_forward_length(shape["ffn"])
    writer.add_head_count(shape["heads"])
    writer.add_head_count_kv(shape["kv_heads"])
    writer.add_layer_norm_rms_eps(EPS)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_vocab_size(VOCAB)
    if shape["experts"]:
        writer.add_expert_count(shape["experts"])
        writer.add_expert_used_count(TOP_K)
    vocab = sorted(tokenizer["model"]["vocab"].items(), key=lambda item: item[1])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([token for token, _ in vocab])
    writer.add_token_types([3 if token in SPECIALS else 1 for token, _ in vocab])
    writer.add_token_merges([" ".join(m) if isinstance(m, list) else m for m in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    quant = {"F16": gguf.GGMLQuantizationType.F16, "Q8_0": gguf.GGMLQuantizationType.Q8_0}[kind]
    writer.add_file_type({"F16": 1, "Q8_0": 7}[kind])
    for tensor, value in gguf_tensors(shape, w):
        value = np.ascontiguousarray(value, dtype=np.float32)
        plain = value.ndim == 1 or "ffn_gate_inp" in tensor  # norms and routers stay exact
        data = value if plain else gguf.quants.quantize(value, quant)
        writer.add_tensor(tensor, data, raw_dtype=None if plain else quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def export_hf(shape, w, tokenizer_path, folder):
    import numpy as np
    from safetensors.numpy import save_file
    folder.mkdir(parents=True, exist_ok=True)
    names = {"attn.q": "self_attn.q_proj", "attn.k": "self_attn.k_proj", "attn.v": "self_attn.v_proj",
             "attn.o": "self_attn.o_proj", "ffn.gate": "mlp.gate_proj", "ffn.up": "mlp.up_proj",
             "ffn.down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    tensors = {"model.embed_tokens.weight": w["embed.weight"], "model.norm.weight": w["norm.weight"]}
    for i in range(shape["layers"]):
        for ours, theirs in names.items():
            tensors[f"model.layers.{i}.{theirs}.weight"] = w[f"layers.{i}.{ours}.weight"]
    save_file({k: np.ascontiguousarray(v.astype(np.float16)) for k, v in tensors.items()},
              str(folder / "model.safetensors"))
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": shape["hidden"],
              "intermediate_size": shape["ffn"], "num_hidden_layers": shape["layers"],
              "num_attention_heads": shape["heads"], "num_key_value_heads": shape["kv_heads"],
              "head_dim": shape["hidden"] // shape["heads"], "hidden_act": "silu", "max_position_embeddings": CONTEXT,
              "rms_norm_eps": EPS, "rope_theta": ROPE_BASE, "rope_scaling": None, "tie_word_embeddings": True,
              "attention_bias": False, "mlp_bias": False, "vocab_size": VOCAB, "bos_token_id": 0, "eos_token_id": 2,
              "torch_dtype": "float16"}
    write = lambda name, value: (folder / name).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    write("config.json", config)
    write("generation_config.json", {"bos_token_id": 0, "eos_token_id": [0, 2]})
    write("tokenizer_config.json", {"bos_token": SPECIALS[0], "eos_token": SPECIALS[2], "add_bos_token": False,
                                    "chat_template": TEMPLATE, "model_max_length": CONTEXT,
                                    "tokenizer_class": "PreTrainedTokenizerFast"})
    (folder / "tokenizer.json").write_bytes(tokenizer_path.read_bytes())


def export(work, out):
    import numpy as np
    DATA.mkdir(parents=True, exist_ok=True)
    tokenizer = json.loads((work / "tokenizer.json").read_text(encoding="utf-8"))
    for name, shape in SHAPES.items():
        w = dict(np.load(out / f"{name}.npz"))
        for kind in ("Q8_0", "F16") if name == "tiny-1m" else ("Q8_0",):
            path = DATA / f"{name}-{kind.lower()}.gguf"
            export_gguf(name, shape, w, tokenizer, kind, path)
            print(path.relative_to(ROOT), path.stat().st_size)
        if name == "tiny-1m":
            export_hf(shape, w, work / "tokenizer.json", DATA / "tiny-1m-hf")


def main():
    verbs = {"prepare": prepare, "train": train, "export": export}
    if len(sys.argv) != 4 or sys.argv[1] not in verbs:
        sys.exit(__doc__)
    verbs[sys.argv[1]](pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))


if __name__ == "__main__":
    main()
