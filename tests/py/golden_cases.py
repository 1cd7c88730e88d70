"""What the writer of llama.cpp's goldens (golden_llama.py) and their reader (test_model_llama.py) agree on."""
import numpy as np

# Left out: what llama.cpp computes otherwise or its files cannot say. It ignores the windows of Mistral and Phi, takes
# Gemma's query scale from the model's size and always makes the weights of Qwen's experts sum to 1.
LLAMA_CASES = ["llama", "llama-tied-mha", "llama-head-dim", "llama-bias", "llama3", "llama-linear", "llama-yarn",
               "qwen2", "qwen3", "qwen3-yarn", "gemma2", "gemma3", "gemma3-linear", "phi3", "phi3-longrope-short",
               "phi4-mini", "mixtral", "qwen3moe"]
TINY_TOKENS = 128
TINY_ROWS = [0, 50, 127]

WINDOW, WINDOWS = 2048, 4
DEFAULT_SAMPLE = 96  # every so many of the vocabulary

# "What is the capital of France?" in the default model's template, up to where the assistant begins.
FRANCE_IDS = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182,
              2, 198, 1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]


def sample_rows():
    return list(range(63, WINDOW, 256))


def best_and_margin(logits):
    """The largest logit's id of each row, and by how much it leads, in nats."""
    best = logits.argmax(axis=-1)
    margin = np.empty(len(best), np.float32)
    for i, row in enumerate(logits):
        rest = max(row[:best[i]].max(initial=-np.inf), row[best[i] + 1:].max(initial=-np.inf))
        margin[i] = row[best[i]] - rest
    return best, margin


def log_probabilities(logits, ids):
    """Of the given id in each row."""
    most = logits.max(axis=-1).astype(np.float64)
    total = np.array([np.exp(row - m).sum(dtype=np.float64) for row, m in zip(logits, most.astype(np.float32))])
    return logits[np.arange(len(ids)), np.asarray(ids, dtype=np.int64)] - (most + np.log(total))
