/* Names of models; see hub.h for the forms. Everything here is pure: text in, text out.
 *
 * A name that came from a person becomes part of URLs and of file names, so each part has an alphabet, and what is
 * outside it is an error that shows the part. Entry names are derived, not chosen: the same model pulled twice lands in
 * the same folder whatever way it was spelled. */
#include "hub/hub_int.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static bool is_name_char(char c)
{
    return isalnum((unsigned char)c) || c == '.' || c == '_' || c == '-';
}

bool hub_name_is_valid(struct str name)
{
    if (name.n == 0 || name.n > HUB_NAME_MAX || name.p[0] == '.' || name.p[0] == '-')
        return false;
    for (size_t i = 0; i < name.n; i++)
        if (!is_name_char(name.p[i]))
            return false;
    return true;
}

/* Copy a part of a spec into a field of cap bytes, checked by an alphabet of extra characters. */
static enum err take_part(struct str part, const char *what, const char *extra, char *out, size_t cap, struct error *e)
{
    char shown[120];
    if (part.n == 0)
        return FAIL(e, ERR_INVALID, "the %s is empty", what);
    if (part.n >= cap)
        return FAIL(e, ERR_LIMIT, "the %s has %zu bytes; the limit is %zu", what, part.n, cap - 1);
    for (size_t i = 0; i < part.n; i++)
        if (!is_name_char(part.p[i]) && strchr(extra, part.p[i]) == NULL)
            return FAIL(e, ERR_INVALID, "the %s '%s' has a character that such names cannot have", what,
                str_show(part, shown, sizeof shown));
    memcpy(out, part.p, part.n);
    out[part.n] = '\0';
    return OK;
}

static enum err parse_hf(struct hub_spec *s, struct str rest, struct error *e)
{
    struct str repo = rest, revision = STR("main"), file = {rest.p + rest.n, 0};
    const char *colon = memchr(rest.p, ':', rest.n);
    if (colon != NULL) {
        repo.n = (size_t)(colon - rest.p);
        file = (struct str){colon + 1, rest.n - repo.n - 1};
        if (file.n == 0)
            return FAIL(e, ERR_INVALID, "nothing follows the ':' that should name a file");
    }
    const char *at = memchr(repo.p, '@', repo.n);
    if (at != NULL) {
        revision = (struct str){at + 1, repo.n - (size_t)(at - repo.p) - 1};
        repo.n = (size_t)(at - repo.p);
    }
    TRY(take_part(repo, "repository", "/", s->repo, sizeof s->repo, e));
    TRY(take_part(revision, "revision", "/", s->revision, sizeof s->revision, e));
    if (!path_is_contained(str_of(s->revision)))
        return FAIL(e, ERR_INVALID, "'%s' is not a revision", s->revision);
    const char *slash = strchr(s->repo, '/');
    if (slash == NULL || strchr(slash + 1, '/') != NULL || !path_is_contained(str_of(s->repo)) || s->repo[0] == '.')
        return FAIL(e, ERR_INVALID, "'%s' is not owner/repo", s->repo);
    if (file.n > 0) {
        char shown[120];
        if (!path_is_contained(file))
            return FAIL(e, ERR_INVALID, "'%s' is not a file name of a repository", str_show(file, shown, sizeof shown));
        if (file.n >= sizeof s->file)
            return FAIL(e, ERR_LIMIT, "the file name has %zu bytes; the limit is %zu", file.n, sizeof s->file - 1);
        memcpy(s->file, file.p, file.n);
        s->file[file.n] = '\0';
    }
    s->kind = HUB_KIND_HF;
    return OK;
}

static void hex_of(struct str text, char out[SHA256_HEX_MAX], bool *ok)
{
    struct sha256 *sha = NULL;
    unsigned char digest[SHA256_BYTES];
    *ok = sha256_new(&sha, NULL) == OK;
    if (!*ok)
        return;
    sha256_add(sha, text.p, text.n);
    sha256_end(sha, digest);
    sha256_hex(digest, out);
    sha256_free(sha);
}

/* Replace what a name cannot hold; a name that is too long keeps its start and gets a hash of the whole. */
static enum err make_name(struct str raw, char out[HUB_NAME_MAX + 1], struct error *e)
{
    const size_t n = MIN(raw.n, (size_t)HUB_NAME_MAX);
    for (size_t i = 0; i < n; i++)
        out[i] = is_name_char(raw.p[i]) && !(i == 0 && (raw.p[i] == '.' || raw.p[i] == '-')) ? raw.p[i] : '_';
    out[n] = '\0';
    if (raw.n > HUB_NAME_MAX) {
        char hex[SHA256_HEX_MAX];
        bool ok;
        hex_of(raw, hex, &ok);
        if (!ok)
            return FAIL(e, ERR_NOMEM, "no memory to name an entry");
        snprintf(out + HUB_NAME_MAX - 17, 18, "-%.16s", hex);
    }
    return OK;
}

static enum err parse_url(struct hub_spec *s, const char *model, struct error *e)
{
    char shown[200];
    if (strlen(model) >= HUB_URL_MAX)
        return FAIL(e, ERR_LIMIT, "the URL has %zu bytes; the limit is %d", strlen(model), HUB_URL_MAX - 1);
    TRY(url_check(model, false, e));
    size_t end = strcspn(model, "?#"), start = end;
    while (start > 0 && model[start - 1] != '/')
        start--;
    const struct str file = {model + start, end - start};
    if (!str_has_suffix(file, STR(".gguf")) || !path_is_contained(file) || file.n >= sizeof s->file || file.p[0] == '.')
        return FAIL(e, ERR_UNSUPPORTED, "%s does not name a .gguf file", url_show(model, shown, sizeof shown));
    for (size_t i = 0; i < file.n; i++) /* a %2F or a blank in a URL is no part of a file name */
        s->file[i] = is_name_char(file.p[i]) ? file.p[i] : '_';
    s->file[file.n] = '\0';
    bool ok;
    hex_of(str_of(model), s->url_id, &ok);
    char raw[sizeof s->file + 16];
    if (!ok)
        return FAIL(e, ERR_NOMEM, "no memory to name an entry");
    snprintf(raw, sizeof raw, "%.*s-%.8s", (int)(file.n - 5), s->file, s->url_id);
    s->kind = HUB_KIND_URL;
    return make_name(str_of(raw), s->name, e);
}

enum err spec_parse(struct hub_spec *s, const char *model, struct error *e)
{
    *s = (struct hub_spec){.text = model != NULL ? model : ""};
    char shown[160];
    enum err err = OK;
    if (s->text[0] == '\0' || strcmp(s->text, "default") == 0 || strcmp(s->text, HUB_DEFAULT_NAME) == 0) {
        s->kind = HUB_KIND_DEFAULT;
        memcpy(s->name, HUB_DEFAULT_NAME, sizeof HUB_DEFAULT_NAME);
    } else if (strncmp(s->text, "hf:", 3) == 0)
        err = parse_hf(s, str_of(s->text + 3), e);
    else if (strstr(s->text, "://") != NULL)
        err = parse_url(s, s->text, e);
    else {
        s->kind = HUB_KIND_NAME;
        if (hub_name_is_valid(str_of(s->text)))
            memcpy(s->name, s->text, strlen(s->text) + 1);
    }
    if (err != OK && s->kind != HUB_KIND_URL && strstr(s->text, "://") == NULL)
        error_prefix(e, "%s", str_show(str_of(s->text), shown, sizeof shown));
    return err;
}

enum err spec_hf_entry_name(
    const struct hub_spec *s, const char *open_file, char out[HUB_NAME_MAX + 1], struct error *e)
{
    char raw[HUB_REPO_MAX + 2048];
    const char *slash = strchr(s->repo, '/');
    assert(slash != NULL);
    int n = snprintf(raw, sizeof raw, "%.*s--%s", (int)(slash - s->repo), s->repo, slash + 1);
    if (open_file[0] != '\0') {
        /* The stem, without the number of a split file: all parts are one entry. */
        size_t stem = strlen(open_file);
        if (str_has_suffix(str_of(open_file), STR(".gguf")))
            stem -= 5;
        if (stem > 15 && strncmp(open_file + stem - 15, "-00001-of-", 10) == 0)
            stem -= 15;
        n += snprintf(raw + n, sizeof raw - (size_t)n, "--%.*s", (int)MIN(stem, (size_t)1024), open_file);
    }
    if (strcmp(s->revision, "main") != 0)
        snprintf(raw + n, sizeof raw - (size_t)n, "--%s", s->revision);
    return make_name(str_of(raw), out, e);
}

unsigned name_distance(const char *a, const char *b)
{
    unsigned row[65];
    const size_t na = MIN(strlen(a), (size_t)64), nb = MIN(strlen(b), (size_t)64);
    for (size_t j = 0; j <= nb; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; i <= na; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= nb; j++) {
            const bool same = tolower((unsigned char)a[i - 1]) == tolower((unsigned char)b[j - 1]);
            const unsigned replace = diagonal + (same ? 0 : 1);
            diagonal = row[j];
            row[j] = MIN(replace, MIN(row[j], row[j - 1]) + 1);
        }
    }
    return row[nb];
}
