/* Errors as clients of OpenAI's API expect them: {"error":{"message","type","param","code"}} and a status.
 *
 * A message names the field and the limit. It never shows a path, an address or a place in our source: errors that come
 * from the machine rather than from the request become fixed sentences, and the log has the rest. */
#include "api/api_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    int status;
    const char *type, *code;
} statuses[] = {
    {400, "invalid_request_error", NULL},
    {401, "invalid_request_error", "invalid_api_key"},
    {403, "permission_error", NULL},
    {404, "not_found_error", NULL},
    {405, "invalid_request_error", "method_not_allowed"},
    {409, "invalid_request_error", NULL},
    {413, "invalid_request_error", "request_too_large"},
    {415, "invalid_request_error", NULL},
    {429, "rate_limit_error", "rate_limit_exceeded"},
    {500, "server_error", NULL},
    {503, "unavailable_error", NULL},
};

int api_status_of(enum err code)
{
    static const int by_code[ERR_COUNT] = {[OK] = 200,
        [ERR_INVALID] = 400,
        [ERR_FORMAT] = 400,
        [ERR_UNSUPPORTED] = 400,
        [ERR_LIMIT] = 400,
        [ERR_NOT_FOUND] = 404,
        [ERR_EXISTS] = 409,
        [ERR_DENIED] = 403,
        [ERR_IO] = 500,
        [ERR_NETWORK] = 500,
        [ERR_HASH] = 500,
        [ERR_NOMEM] = 503,
        [ERR_AGAIN] = 429,
        [ERR_CANCELLED] = 503,
        [ERR_INTERNAL] = 500};
    return by_code[code];
}

static void set_status(struct api_error *ae, int status, const char *param, const char *code)
{
    ae->status = status;
    ae->type = status < 500 ? "invalid_request_error" : "server_error";
    ae->code = code;
    for (size_t i = 0; i < COUNT_OF(statuses); i++)
        if (statuses[i].status == status) {
            ae->type = statuses[i].type;
            ae->code = code != NULL ? code : statuses[i].code;
        }
    str_show(str_of(param != NULL ? param : ""), ae->param, sizeof ae->param);
}

bool api_fail(struct api_error *ae, int status, const char *param, const char *fmt, ...)
{
    if (ae->status != 0)
        return false;
    va_list args;
    va_start(args, fmt);
    vsnprintf(ae->text, sizeof ae->text, fmt, args);
    va_end(args);
    set_status(ae, status, param, NULL);
    return false;
}

bool api_fail_code(struct api_error *ae, int status, const char *param, const char *code, const char *fmt, ...)
{
    if (ae->status != 0)
        return false;
    va_list args;
    va_start(args, fmt);
    vsnprintf(ae->text, sizeof ae->text, fmt, args);
    va_end(args);
    set_status(ae, status, param, code);
    return false;
}

bool api_fail_err(struct api_error *ae, const struct error *e, const char *param)
{
    const int status = api_status_of(e->code);
    if (e->code == ERR_NOMEM)
        return api_fail(ae, status, NULL, "the server has no memory left for this request; try again later");
    if (status >= 500)
        return api_fail(ae, status, NULL, "the server failed to answer; its log says why");
    return api_fail(ae, status, param, "%s", e->text);
}

void api_error_json(const struct api_error *ae, struct buf *out)
{
    buf_add(out, STR("{\"error\":{\"message\":"));
    buf_add_json_str(out, str_of(ae->text));
    buf_addf(out, ",\"type\":\"%s\",\"param\":", ae->type);
    if (ae->param[0] != '\0')
        buf_add_json_str(out, str_of(ae->param));
    else
        buf_add(out, STR("null"));
    if (ae->code != NULL)
        buf_addf(out, ",\"code\":\"%s\"}}", ae->code);
    else
        buf_add(out, STR(",\"code\":null}}"));
}
