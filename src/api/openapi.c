/* GET /openapi.json: the description of this server, made from the route table and the schemas below. */
#include "api/api_int.h"

#include <string.h>

#define NUMBER(name, min, max) "\"" name "\":{\"type\":\"number\",\"minimum\":" #min ",\"maximum\":" #max "},"
#define WHOLE(name, min, max)  "\"" name "\":{\"type\":\"integer\",\"minimum\":" #min ",\"maximum\":" #max "},"
#define FLAG(name)             "\"" name "\":{\"type\":\"boolean\"},"
/* structured.c */
#define GRAMMAR_FIELDS                                                                                                 \
    "\"response_format\":{\"type\":\"object\",\"required\":[\"type\"],"                                                \
    "\"properties\":{\"type\":{\"enum\":[\"text\","                                                                    \
    "\"json_object\",\"json_schema\"]},\"json_schema\":{\"type\":\"object\",\"required\":[\"name\",\"schema\"],"       \
    "\"properties\":{\"name\":{\"type\":\"string\",\"pattern\":\"^[a-zA-Z0-9_-]{1,64}$\"},\"schema\":{\"type\":"       \
    "\"object\"},\"strict\":{\"type\":\"boolean\"}}}}},"                                                               \
    "\"structured_outputs\":{\"type\":\"object\",\"additionalProperties\":false,"                                      \
    "\"properties\":{\"json\":{\"type\":"                                                                              \
    "\"object\"},\"json_object\":{\"type\":\"boolean\"},\"regex\":{\"type\":\"string\"},"                              \
    "\"choice\":{\"type\":\"array\","                                                                                  \
    "\"items\":{\"type\":\"string\"},\"minItems\":1},\"grammar\":{\"type\":\"string\"},"                               \
    "\"whitespace\":{\"enum\":["                                                                                       \
    "\"spaced\",\"compact\",\"flexible\"]}}},"                                                                         \
    "\"guided_json\":{\"type\":\"object\"},\"guided_regex\":{\"type\":\"string\"},\"guided_choice\":{\"type\":"        \
    "\"array\",\"items\":{\"type\":\"string\"},\"minItems\":1},\"guided_grammar\":{\"type\":\"string\"},"              \
    "\"grammar\":"                                                                                                     \
    "{\"type\":\"string\"},\"json_schema\":{\"type\":\"object\"},"

#define IDS(name) "\"" name "\":{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":0}},"

/* What chat and completions share (fields.c). */
#define SHARED_FIELDS                                                                                                  \
    "\"model\":{\"type\":\"string\",\"description\":\"one of /v1/models; the served one when left out\"}," NUMBER(     \
        "temperature", 0, 100) NUMBER("top_p", 0, 1) WHOLE("top_k", -1, 2147483647) NUMBER("min_p", 0,                 \
        1) NUMBER("typical_p", 0.000001, 1) NUMBER("repetition_penalty", 0.01, 100) NUMBER("presence_penalty", -2,     \
        2) NUMBER("frequency_penalty", -2, 2) "\"seed\":{\"type\":\"integer\"}," WHOLE("n", 1,                         \
        128) "\"logit_bias\":{\"type\":\"object\",\"additionalProperties\":{\"type\":\"number\",\"minimum\":-100,"     \
             "\"maximum\":100}},"                                                                                      \
             "\"stop\":{\"oneOf\":[{\"type\":\"string\",\"minLength\":1},{\"type\":\"array\",\"items\":{\"type\":"     \
             "\"string\","                                                                                             \
             "\"minLength\":1},\"maxItems\":64}]}," IDS("stop_token_ids") IDS("allowed_token_ids") FLAG("ignore_eos")  \
                 FLAG("include_stop_str_in_output") WHOLE("min_tokens", 0, 134217728) FLAG("skip_special_tokens")      \
                     FLAG("add_special_tokens") FLAG("stream") FLAG("resumable") WHOLE("stream_interval", 1,           \
                         4096) "\"stream_options\":{\"type\":\"object\",\"properties\":{\"include_usage\":{\"type\":"  \
                               "\"boolean\"},"                                                                         \
                               "\"continuous_usage_stats\":{\"type\":\"boolean\"},\"include_token_times\":{\"type\":"  \
                               "\"boolean\"}}}," WHOLE("prompt_logprobs", 0, 20) FLAG("return_token_ids")              \
                                   FLAG("return_tokens_as_token_ids") WHOLE("truncate_prompt_tokens", 1,               \
                                       134217728) "\"priority\":{\"type\":\"integer\"},"                               \
                                                  "\"cache_salt\":{\"type\":\"string\",\"maxLength\":256},"            \
                                                  "\"request_id\":{\"type\":\"string\",\"maxLength\":64}"

/* clang-format off */
static const char schemas[] =
    "{\"ChatRequest\":{\"type\":\"object\",\"required\":[\"messages\"],\"properties\":{"
    "\"messages\":{\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":\"object\","
    "\"required\":[\"role\",\"content\"],"
    "\"properties\":{\"role\":{\"type\":\"string\",\"enum\":[\"system\",\"user\",\"assistant\"]},"
    "\"content\":{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"array\",\"items\":{\"type\":\"object\","
    "\"required\":[\"type\",\"text\"],\"properties\":{\"type\":{\"type\":\"string\",\"enum\":[\"text\"]},"
    "\"text\":{\"type\":\"string\"}}}}]}}}},"
    WHOLE("max_tokens", 1, 134217728) WHOLE("max_completion_tokens", 1, 134217728) FLAG("logprobs")
    WHOLE("top_logprobs", 0, 20) FLAG("add_generation_prompt") "\"chat_template_kwargs\":{\"type\":\"object\"},"
    "\"documents\":{\"type\":\"array\",\"items\":{\"type\":\"object\"}},"
    "\"tools\":{\"type\":\"array\",\"maxItems\":128,\"items\":{\"type\":\"object\",\"required\":[\"function\"],"
    "\"properties\":{\"type\":{\"type\":\"string\",\"enum\":[\"function\"]},\"function\":{\"type\":\"object\","
    "\"required\":[\"name\"],\"properties\":{\"name\":{\"type\":\"string\",\"pattern\":\"^[a-zA-Z0-9_.-]{1,64}$\"},"
    "\"description\":{\"type\":\"string\"},\"parameters\":{\"type\":\"object\"},\"strict\":{\"type\":\"boolean\"}}}}}},"
    "\"tool_choice\":{\"oneOf\":[{\"type\":\"string\",\"enum\":[\"none\",\"auto\",\"required\"]},"
    "{\"type\":\"object\"}]}," FLAG("parallel_tool_calls") FLAG("include_reasoning")
    "\"reasoning_effort\":{\"type\":\"string\"},\"reasoning\":{\"type\":\"object\"},"
    WHOLE("thinking_budget", 0, 134217728)
    GRAMMAR_FIELDS SHARED_FIELDS "}},"
    "\"MessagesRequest\":{\"type\":\"object\",\"required\":[\"messages\",\"max_tokens\"],\"properties\":{"
    "\"model\":{\"type\":\"string\"},"
    "\"messages\":{\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":\"object\","
    "\"required\":[\"role\",\"content\"],"
    "\"properties\":{\"role\":{\"type\":\"string\",\"enum\":[\"user\",\"assistant\"]},"
    "\"content\":{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"array\",\"items\":{\"type\":\"object\"}}]}}}},"
    "\"system\":{\"type\":\"string\"},\"stop_sequences\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}},"
    "\"tools\":{\"type\":\"array\",\"items\":{\"type\":\"object\",\"required\":[\"name\",\"input_schema\"],"
    "\"properties\":{\"name\":{\"type\":\"string\"},\"input_schema\":{\"type\":\"object\"}}}},"
    "\"tool_choice\":{\"type\":\"object\"},\"thinking\":{\"type\":\"object\"},"
    FLAG("stream") NUMBER("temperature", 0, 2) NUMBER("top_p", 0, 1) WHOLE("max_tokens", 1, 134217728)
    "\"metadata\":{\"type\":\"object\"}}},"
    "\"CompletionRequest\":{\"type\":\"object\",\"required\":[\"prompt\"],\"properties\":{"
    "\"prompt\":{\"oneOf\":[{\"type\":\"string\",\"minLength\":1},{\"type\":\"array\",\"items\":{\"type\":\"string\"},"
    "\"minItems\":1,\"maxItems\":256},"
    "{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":0},\"minItems\":1},"
    "{\"type\":\"array\",\"items\":{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":0},\"minItems\":1},"
    "\"minItems\":1,\"maxItems\":256}]},"
    WHOLE("max_tokens", 0, 134217728) FLAG("echo") WHOLE("logprobs", 0, 20)
    GRAMMAR_FIELDS SHARED_FIELDS "}},"
    "\"EmbeddingRequest\":{\"type\":\"object\",\"required\":[\"input\"],"
    "\"properties\":{\"model\":{\"type\":\"string\"},"
    "\"input\":{\"oneOf\":[{\"type\":\"string\",\"minLength\":1},{\"type\":\"array\",\"items\":{\"type\":\"string\"},"
    "\"minItems\":1,\"maxItems\":256},"
    "{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":0},\"minItems\":1},"
    "{\"type\":\"array\",\"items\":{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":0},\"minItems\":1},"
    "\"minItems\":1,\"maxItems\":256}]},"
    "\"encoding_format\":{\"type\":\"string\",\"enum\":[\"float\",\"base64\"]},"
    "\"pooling\":{\"type\":\"string\",\"enum\":[\"mean\",\"last\"]}," WHOLE("dimensions", 1, 65536)
    WHOLE("truncate_prompt_tokens", 1, 134217728) FLAG("add_special_tokens") "\"priority\":{\"type\":\"integer\"}}},"
    "\"TokenizeRequest\":{\"type\":\"object\",\"properties\":{\"model\":{\"type\":\"string\"},"
    "\"prompt\":{\"type\":\"string\"},\"messages\":{\"type\":\"array\",\"items\":{\"type\":\"object\"}},"
    FLAG("add_special_tokens") "\"return_token_strs\":{\"type\":\"boolean\"}}},"
    "\"DetokenizeRequest\":{\"type\":\"object\",\"required\":[\"tokens\"],\"properties\":{"
    "\"model\":{\"type\":\"string\"},\"tokens\":{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":0}}}},"
    "\"Error\":{\"type\":\"object\",\"required\":[\"error\"],\"properties\":{\"error\":{\"type\":\"object\","
    "\"required\":[\"message\",\"type\",\"param\",\"code\"],\"properties\":{\"message\":{\"type\":\"string\"},"
    "\"type\":{\"type\":\"string\"},\"param\":{\"type\":[\"string\",\"null\"]},"
    "\"code\":{\"type\":[\"string\",\"null\"]}}}}}}";
/* clang-format on */

static const char *method_word(enum method m)
{
    return m == METHOD_GET ? "get" : m == METHOD_POST ? "post" : "delete";
}

static void add_route(const struct route *r, struct buf *b)
{
    buf_addf(b, "\"%s\":{\"summary\":", method_word(r->method));
    buf_add_json_str(b, str_of(r->summary));
    buf_add(b, STR(",\"operationId\":\""));
    buf_addf(b, "%s", method_word(r->method));
    for (const char *p = r->path; *p != '\0'; p++)
        buf_add_char(b, (*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9') ? *p : '_');
    buf_add(b, STR("\","));
    if (strchr(r->path, '{') != NULL)
        buf_add(b, STR("\"parameters\":[{\"name\":\"id\",\"in\":\"path\",\"required\":true,"
                       "\"schema\":{\"type\":\"string\",\"minLength\":1}}],"));
    if (r->request_schema != NULL)
        buf_addf(b,
            "\"requestBody\":{\"required\":true,\"content\":{\"application/json\":{\"schema\":{\"$ref\":"
            "\"#/components/schemas/%s\"}}}},",
            r->request_schema);
    if (!r->open)
        buf_add(b, STR("\"security\":[{},{\"key\":[]}],"));
    buf_add(b, STR("\"responses\":{\"200\":{\"description\":\"as asked\"},\"default\":{\"description\":\"an error\","
                   "\"content\":{\"application/json\":{\"schema\":{\"$ref\":\"#/components/schemas/Error\"}}}}}}"));
}

void route_openapi(struct call *c)
{
    size_t n;
    const struct route *rows = routes_table(&n);
    struct buf b;
    buf_init(&b, 1 * MIB);
    buf_add(
        &b, STR("{\"openapi\":\"3.1.0\",\"info\":{\"title\":\"quern\",\"version\":\"" QUERN_VERSION "\"},\"paths\":{"));
    for (size_t i = 0; i < n; i++) {
        buf_addf(&b, "%s\"%s\":{", i > 0 ? "," : "", rows[i].path);
        add_route(&rows[i], &b);
        buf_add_char(&b, '}');
    }
    buf_add(&b, STR("},\"components\":{\"securitySchemes\":{\"key\":{\"type\":\"http\",\"scheme\":\"bearer\"}},"
                    "\"schemas\":"));
    buf_add(&b, str_of(schemas));
    buf_add(&b, STR("}}"));
    call_reply_buf(c, &b);
    buf_fini(&b);
}
