/* TLS: a certificate and its key, read at the start and again on a reload. Connections keep the context they began
 * with; new ones get the new one. */
#include "api/api_int.h"

#include <event2/bufferevent_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

struct tls {
    pthread_mutex_t lock;
    SSL_CTX *ctx;
    const char *cert, *key;
};

static enum err why(const char *what, const char *path, struct error *e)
{
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    const enum err err = FAIL(e, ERR_INVALID, "%s %s: %s", what, path, reason != NULL ? reason : "not usable");
    ERR_clear_error();
    return err;
}

static enum err make_context(const char *cert, const char *key, SSL_CTX **out, struct error *e)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    if (ctx == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for TLS");
    enum err err = OK;
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    if (SSL_CTX_use_certificate_chain_file(ctx, cert) != 1)
        err = why("the TLS certificate", cert, e);
    else if (SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM) != 1)
        err = why("the TLS key", key, e);
    else if (SSL_CTX_check_private_key(ctx) != 1)
        err = why("the TLS key does not belong to the certificate:", key, e);
    if (err != OK)
        SSL_CTX_free(ctx);
    else
        *out = ctx;
    return err;
}

enum err tls_new(const char *cert, const char *key, struct tls **out, struct error *e)
{
    struct tls *t = mem_zalloc(sizeof *t);
    if (t == NULL)
        return FAIL(e, ERR_NOMEM, "no memory for TLS");
    t->cert = cert;
    t->key = key;
    if (pthread_mutex_init(&t->lock, NULL) != 0) {
        mem_free(t);
        return FAIL(e, ERR_NOMEM, "no mutex for TLS");
    }
    const enum err err = make_context(cert, key, &t->ctx, e);
    if (err != OK)
        tls_free(t);
    else
        *out = t;
    return err;
}

enum err tls_reload(struct tls *t, struct error *e)
{
    SSL_CTX *ctx = NULL;
    TRY(make_context(t->cert, t->key, &ctx, e));
    pthread_mutex_lock(&t->lock);
    SSL_CTX *old = t->ctx;
    t->ctx = ctx;
    pthread_mutex_unlock(&t->lock);
    SSL_CTX_free(old); /* connections hold their own references */
    return OK;
}

struct bufferevent *tls_bufferevent(struct tls *t, struct event_base *base)
{
    pthread_mutex_lock(&t->lock);
    SSL *ssl = SSL_new(t->ctx);
    pthread_mutex_unlock(&t->lock);
    if (ssl == NULL)
        return NULL;
    struct bufferevent *bev =
        bufferevent_openssl_socket_new(base, -1, ssl, BUFFEREVENT_SSL_ACCEPTING, BEV_OPT_CLOSE_ON_FREE);
    if (bev == NULL)
        SSL_free(ssl);
    else
        bufferevent_openssl_set_allow_dirty_shutdown(bev, 1);
    return bev;
}

void tls_free(struct tls *t)
{
    if (t == NULL)
        return;
    SSL_CTX_free(t->ctx);
    pthread_mutex_destroy(&t->lock);
    mem_free(t);
}
