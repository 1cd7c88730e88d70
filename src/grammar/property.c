/* \p{...}: the general categories of Unicode, by their short and long names, alone or as General_Category=..., and
 * Any, Assigned and ASCII. Scripts and binary properties are not here; who asks for one is told its name. */
#include "grammar/build.h"

#include "grammar/categories.h"

/* A name and the categories it stands for, as bits. */
#define BIT(c)     (UINT32_C(1) << (c))
#define LETTER     (BIT(Lu) | BIT(Ll) | BIT(Lt) | BIT(Lm) | BIT(Lo))
#define MARK       (BIT(Mn) | BIT(Mc) | BIT(Me))
#define NUMBER     (BIT(Nd) | BIT(Nl) | BIT(No))
#define PUNCT      (BIT(Pc) | BIT(Pd) | BIT(Ps) | BIT(Pe) | BIT(Pi) | BIT(Pf) | BIT(Po))
#define SYMBOL     (BIT(Sm) | BIT(Sc) | BIT(Sk) | BIT(So))
#define SEPARATOR  (BIT(Zs) | BIT(Zl) | BIT(Zp))
#define OTHER      (BIT(Cc) | BIT(Cf) | BIT(Cs) | BIT(Co) | BIT(Cn))
#define CASED      (BIT(Lu) | BIT(Ll) | BIT(Lt))
#define EVERYTHING (LETTER | MARK | NUMBER | PUNCT | SYMBOL | SEPARATOR | OTHER)

static const struct {
    const char *brief, *full;
    uint32_t bits;
} NAMES[] = {
    {"L", "Letter", LETTER},
    {"LC", "Cased_Letter", CASED},
    {"Lu", "Uppercase_Letter", BIT(Lu)},
    {"Ll", "Lowercase_Letter", BIT(Ll)},
    {"Lt", "Titlecase_Letter", BIT(Lt)},
    {"Lm", "Modifier_Letter", BIT(Lm)},
    {"Lo", "Other_Letter", BIT(Lo)},
    {"M", "Mark", MARK},
    {"Mn", "Nonspacing_Mark", BIT(Mn)},
    {"Mc", "Spacing_Mark", BIT(Mc)},
    {"Me", "Enclosing_Mark", BIT(Me)},
    {"N", "Number", NUMBER},
    {"Nd", "Decimal_Number", BIT(Nd)},
    {"digit", "digit", BIT(Nd)},
    {"Nl", "Letter_Number", BIT(Nl)},
    {"No", "Other_Number", BIT(No)},
    {"P", "Punctuation", PUNCT},
    {"punct", "punct", PUNCT},
    {"Pc", "Connector_Punctuation", BIT(Pc)},
    {"Pd", "Dash_Punctuation", BIT(Pd)},
    {"Ps", "Open_Punctuation", BIT(Ps)},
    {"Pe", "Close_Punctuation", BIT(Pe)},
    {"Pi", "Initial_Punctuation", BIT(Pi)},
    {"Pf", "Final_Punctuation", BIT(Pf)},
    {"Po", "Other_Punctuation", BIT(Po)},
    {"S", "Symbol", SYMBOL},
    {"Sm", "Math_Symbol", BIT(Sm)},
    {"Sc", "Currency_Symbol", BIT(Sc)},
    {"Sk", "Modifier_Symbol", BIT(Sk)},
    {"So", "Other_Symbol", BIT(So)},
    {"Z", "Separator", SEPARATOR},
    {"Zs", "Space_Separator", BIT(Zs)},
    {"Zl", "Line_Separator", BIT(Zl)},
    {"Zp", "Paragraph_Separator", BIT(Zp)},
    {"C", "Other", OTHER},
    {"Cc", "Control", BIT(Cc)},
    {"Cf", "Format", BIT(Cf)},
    {"Co", "Private_Use", BIT(Co)},
    {"Cn", "Unassigned", BIT(Cn)},
    {"Any", "Any", EVERYTHING},
    {"Assigned", "Assigned", EVERYTHING & ~BIT(Cn)},
};

static struct str behind_equals(struct str name)
{
    static const char *const prefixes[] = {"General_Category=", "gc="};
    for (size_t i = 0; i < COUNT_OF(prefixes); i++) {
        const struct str p = str_of(prefixes[i]);
        if (str_has_prefix(name, p))
            return (struct str){name.p + p.n, name.n - p.n};
    }
    return name;
}

bool regex_property(struct build *b, struct str name, const struct code_range **out, uint32_t *n)
{
    static const struct code_range ascii = {0, 0x7F};
    uint32_t bits = 0;
    if (str_is(name, "ASCII")) {
        *out = &ascii;
        *n = 1;
        return true;
    }
    name = behind_equals(name);
    for (size_t i = 0; i < COUNT_OF(NAMES); i++)
        if (str_is(name, NAMES[i].brief) || str_is(name, NAMES[i].full))
            bits = NAMES[i].bits;
    struct code_range *r = build_take(b, COUNT_OF(RUNS), sizeof *r);
    if (bits == 0 || r == NULL || !build_steps(b, COUNT_OF(RUNS)))
        return false;
    uint32_t k = 0;
    for (size_t i = 0; i < COUNT_OF(RUNS); i++) {
        const uint32_t from = RUNS[i].packed >> 8, category = RUNS[i].packed & 0xFF;
        const uint32_t to = i + 1 < COUNT_OF(RUNS) ? (RUNS[i + 1].packed >> 8) - 1 : 0x10FFFF;
        if ((bits & BIT(category)) == 0)
            continue;
        if (k > 0 && r[k - 1].to + 1 == from)
            r[k - 1].to = to;
        else
            r[k++] = (struct code_range){from, to};
    }
    *out = r;
    *n = k;
    return true;
}
