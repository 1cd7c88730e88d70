#!/usr/bin/env python3
"""Write tests/golden/transformers.npz: logits of the reference models as Hugging Face's transformers computes them.

The reference decoder of the tests (reference.py) is held to these numbers, and quern to the reference. Needs torch and
transformers; tools/goldens.sh makes an environment with them and runs this.

    golden_transformers.py OUT.npz
"""
import pathlib
import sys
import tempfile

import numpy as np
import torch
import transformers

import reference_models
from reference import Reference, error

TOKENS = 200
ROWS = [0, 39, 40, 41, 64, 128, 199]  # around the window and the tiles, and the last


def logits_of(folder, ids):
    experts = dict(experts_implementation="eager") if "experts" in (folder / "config.json").read_text() else {}
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64,
                                                              attn_implementation="eager", **experts)
    model.eval()
    with torch.no_grad():
        return model(torch.tensor(ids[None].astype(np.int64)), use_cache=False).logits[0].double().numpy()


def main(out):
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        for case in reference_models.CASES:
            config = reference_models.make_config(case)
            weights = reference_models.make_weights(config, case)
            ids = reference_models.make_ids(config, TOKENS)
            folder = reference_models.write_hf(pathlib.Path(scratch) / case, config, weights)
            theirs = logits_of(folder, ids)
            ours = Reference(config, weights, context=TOKENS).logits(ids)
            print(f"{case:24} {error(ours, theirs):.2e}", flush=True)
            found[case] = theirs[ROWS].astype(np.float32)
    np.savez_compressed(out, **found)


if __name__ == "__main__":
    torch.set_num_threads(2)
    transformers.logging.set_verbosity_error()
    main(sys.argv[1])
