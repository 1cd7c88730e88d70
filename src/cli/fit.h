/* model/fit.h as the command line's options spell it.
 *
 * Threads: any. */
#ifndef CLI_FIT_H
#define CLI_FIT_H

#include "cli/options.h"
#include "model/fit.h"

enum dtype fit_kv_dtype(int choice);     /* of enum kv_dtype_choice; or FIT_KV_AUTO */
enum dtype fit_weight_dtype(int choice); /* of --dtype; auto is Q8_0 */

struct fit_wants fit_wants_of(const struct options *o, uint32_t rows, uint32_t out_rows);

#endif
