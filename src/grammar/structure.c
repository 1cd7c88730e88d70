/* Structures: a grammar put together from parts, as JSON. This is how tool calls are asked for: fixed text and control
 * tokens around JSON that follows a schema, behind free text or not. The text of a GRAMMAR_STRUCTURE source is one
 * part; a part is an object with a `type`:
 *
 *   {"type":"text","value":"..."}       exactly this text; not empty
 *   {"type":"control","value":"NAME"}   the token of that name: a control token where the vocabulary has a control
 *                                       token of exactly this name, otherwise the plain text NAME
 *   {"type":"sequence","parts":[...]}   one behind the other; [] is the empty text
 *   {"type":"choice","parts":[...]}     one of them; at least one part
 *   {"type":"repeat","part":{...},"min":0,"max":3}
 *                                       min defaults to 0, max to no limit (null says the same)
 *   {"type":"json","schema":...,"whitespace":"spaced"}
 *                                       a JSON text that follows the schema (true or {}: any value); whitespace is
 *                                       "spaced", "compact" or "flexible" and defaults to the request's
 *   {"type":"json_object","whitespace":...}
 *                                       any JSON object
 *   {"type":"regex","pattern":"..."}    a text that the pattern matches as a whole
 *   {"type":"ebnf","grammar":"..."}     a text of the grammar's rule `root`
 *   {"type":"free_until","stops":["<tool_call>", {"type":"control","value":"<|call|>"}]}
 *                                       any text, the empty one too, in which no stop occurs. Stops are strings, or
 *                                       parts of type text or control. A control token never occurs in free text
 *                                       anyway, so naming one only matters where the vocabulary has no such token;
 *                                       "stops":[] is any text at all
 *
 * A key that a part does not have is refused by name. `sequence(free_until(T), repeat(sequence(text(T), ...)))` reads
 * as one would hope: free text goes on until T is written, a beginning of T that does not become T stays free text, and
 * the text may end behind free text that has not begun a call. */
