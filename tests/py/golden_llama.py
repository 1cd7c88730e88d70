#!/usr/bin/env python3
"""Write tests/golden/llama_tiny.npz, llama_default.npz, exact_default.npz and blas_default.npz: what llama.cpp (through
llama-cpp-python) computes.

tiny     logits of the reference models that llama.cpp can load, in F32 per architecture and in every weight type
default  the default model over 8,192 tokens of quern's own documents and its licence, in four windows of 2,048: the
         ids, llama.cpp's choice at each position, its margin over the runner-up, the log-probability of the token that
         follows, and a sample of raw logits
exact    the same without the sample, on a copy of the model whose 4-bit weights are written as the f32 numbers they
         stand for, with an F32 cache: no input of a product is rounded then, and what remains is float rounding. Also
         the eight best ids, and their logits, after the question about the capital of France
blas     the same as exact on the default model's own file, by a llama.cpp that was built with OpenBLAS: products of 32
         rows and more take the weights as f32 numbers then, and round no inputs either

    golden_llama.py OUT_FOLDER DEFAULT_MODEL.gguf          the first three
    golden_llama.py OUT_FOLDER DEFAULT_MODEL.gguf exact    the third, on the ids of the second as it is
    golden_llama.py OUT_FOLDER DEFAULT_MODEL.gguf blas     the last, likewise

tools/goldens.sh makes an environment with llama-cpp-python and runs this.
"""
import concurrent.futures
import pathlib
import sys
import tempfile

import gguf
import llama_cpp
import numpy as np

import reference_models
import reference_quants
from golden_cases import (DEFAULT_SAMPLE, FRANCE_IDS, LLAMA_CASES, TINY_ROWS, TINY_TOKENS, WINDOW, WINDOWS,
                          best_and_margin, log_probabilities, sample_rows)

ROOT = pathlib.Path(__file__).resolve().parents[2]


def logits_of(path, ids, kv_type, context, threads=2):
    model = llama_cpp.Llama(str(path), n_ctx=context, n_batch=512, n_ubatch=512, logits_all=True, n_threads=threads,
                            n_threads_batch=threads, n_gpu_layers=0, type_k=kv_type, type_v=kv_type, verbose=False)
    model.eval([int(i) for i in ids])
    return np.array(model.scores[:len(ids)], dtype=np.float32)


def tiny(out):
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        for case in LLAMA_CASES:
            config = reference_models.make_config(case)
            weights = reference_models.make_weights(config, case)
            path = reference_models.write_gguf(pathlib.Path(scratch) / "model.gguf", config, weights)
            ids = reference_models.make_ids(config, TINY_TOKENS)
            found[case] = logits_of(path, ids, llama_cpp.GGML_TYPE_F32, 256)[TINY_ROWS]
            print("tiny", case, flush=True)
        for kind in reference_quants.FLOAT_TYPES + reference_quants.BLOCK_TYPES:
            config, values, packed = reference_quants.make_quantised("llama", kind)
            path = reference_models.write_gguf(pathlib.Path(scratch) / "model.gguf", config, values, packed=packed)
            ids = reference_models.make_ids(config, TINY_TOKENS)
            found[kind] = logits_of(path, ids, llama_cpp.GGML_TYPE_F32, 256)[TINY_ROWS]
            print("tiny", kind, flush=True)
    np.savez_compressed(out, **found)


def own_text():
    files = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "LICENSE"]
    return "\n".join(file.read_text() for file in files)


def one_window(path, window):
    logits = logits_of(path, window, llama_cpp.GGML_TYPE_F16, WINDOW, threads=1)
    best, margin = best_and_margin(logits)
    return best, margin, log_probabilities(logits[:-1], window[1:]), logits[sample_rows()][:, ::DEFAULT_SAMPLE]


def default(out, path):
    words = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    ids = np.array(words.tokenize(own_text().encode(), add_bos=False, special=False))
    assert len(ids) >= WINDOW * WINDOWS, f"only {len(ids)} tokens"
    ids = ids[:WINDOW * WINDOWS].astype(np.uint16)
    with concurrent.futures.ProcessPoolExecutor(WINDOWS) as pool:
        windows = list(pool.map(one_window, [path] * WINDOWS, ids.reshape(WINDOWS, WINDOW)))
    best, margin, log_prob, sample = zip(*windows)
    print("default: perplexity", float(np.exp(-np.stack(log_prob).mean())), flush=True)
    np.savez_compressed(out, ids=ids, best=np.concatenate(best).astype(np.uint16),
                        margin=np.concatenate(margin).astype(np.float16),
                        log_prob=np.stack(log_prob).astype(np.float32), sample=np.stack(sample))


def write_expanded(source, target):
    """The same model with weights as f32."""
    file, out = gguf.GGUFReader(source), gguf.GGUFWriter(target, "llama")
    for field in file.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            kind = field.types[0]
            more = {"sub_type": field.types[-1]} if kind == gguf.GGUFValueType.ARRAY else {}
            out.add_key_value(field.name, field.contents(), kind, **more)
    for tensor in file.tensors:
        out.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def choices(folder, path, kv_type, name):
    """best, margin and log_prob of this file over the ids of llama_default.npz."""
    best, margin, log_prob = [], [], []
    for window in np.load(folder / "llama_default.npz")["ids"].reshape(WINDOWS, WINDOW):
        logits = logits_of(path, window, kv_type, WINDOW, threads=1)
        b, m = best_and_margin(logits)
        best.append(b.astype(np.uint16))
        margin.append(m.astype(np.float16))
        log_prob.append(log_probabilities(logits[:-1], window[1:]).astype(np.float32))
        print(f"{name}: perplexity", float(np.exp(-log_prob[-1].mean(dtype=np.float64))), flush=True)
    return {"best": np.concatenate(best), "margin": np.concatenate(margin), "log_prob": np.stack(log_prob)}


def exact(folder, path):
    with tempfile.TemporaryDirectory() as scratch:
        expanded = pathlib.Path(scratch) / "f32.gguf"
        write_expanded(path, expanded)
        france = logits_of(expanded, FRANCE_IDS, llama_cpp.GGML_TYPE_F32, 256, threads=1)[-1]
        top = np.argsort(-france)[:8]
        print("exact: behind the question", [(int(i), round(float(france[i]), 3)) for i in top], flush=True)
        found = choices(folder, expanded, llama_cpp.GGML_TYPE_F32, "exact")
    np.savez_compressed(folder / "exact_default.npz", france_ids=top.astype(np.uint16), france=france[top], **found)


def blas(folder, path):
    libraries = pathlib.Path(llama_cpp.__file__).parent / "lib"
    assert list(libraries.glob("libggml-blas*")), "this llama.cpp was built without BLAS"
    np.savez_compressed(folder / "blas_default.npz", **choices(folder, path, llama_cpp.GGML_TYPE_F16, "blas"))


if __name__ == "__main__":
    golden, model, step = pathlib.Path(sys.argv[1]), sys.argv[2], "".join(sys.argv[3:])
    if step == "":
        tiny(golden / "llama_tiny.npz")
        default(golden / "llama_default.npz", model)
    if step in ("", "exact"):
        exact(golden, model)
    if step == "blas":
        blas(golden, model)
