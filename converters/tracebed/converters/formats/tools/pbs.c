/* Records of PBS accounting as columns of texts, for pbs_text.py.
 *
 * A block of whole lines becomes the buffers of Arrow's columns. A block with a line that is no plain record is left to
 * Python, which has the rare cases and the errors. Of any other block, both make the same.
 */
#include <stdint.h>
#include <string.h>

#define HEAD 22 /* bytes of "MM/DD/YYYY HH:MM:SS;K;" */
enum { OTHER = -1, BLANKS = -2 };

struct cell { /* the last value of a key in a record; length -1: missing */
    int32_t start, length, first; /* first: where the first value of the key begins */
};

struct block { /* `_Block` of pbs_text.py. Column 0 has the jobs, each of the others the values of a key. */
    const char *text, *keys; /* whole lines; the keys, one after the other */
    int64_t length, rows, columns, every_key; /* rows: lines; every_key: whether a key without a column is OTHER */
    const int64_t *key_ends; /* shape (columns,) */
    int32_t *next; /* the next column with the same hash, shape (columns,) */
    struct cell *cells; /* shape (rows, columns) */
    int64_t *stamps; /* MMDDYYYYSSSSS: the date and the second of the day, shape (rows,) */
    uint8_t *kinds;
    int64_t *offsets; /* shape (columns, rows + 1) */
    uint8_t *valid; /* bits, zero before the call, shape (columns, rows / 8 + 1) */
    char *data; /* the values, column after column, at most `length` bytes */
};

int64_t tracebed_pbs_size(void) { return sizeof(struct block); }

static int is_digit(char c) { return c >= '0' && c <= '9'; }
static int is_word(char c) { return is_digit(c) || ((c | 32) >= 'a' && (c | 32) <= 'z') || c == '_'; }
static int is_space(char c) { return (c >= 9 && c <= 13) || (c >= 28 && c <= 32); } /* of ASCII, as Python's strip */
static int two(const char *at) { return (at[0] - '0') * 10 + at[1] - '0'; }

static const char *find(char wanted, const char *at, const char *end)
{
    const char *place = memchr(at, wanted, end - at);
    return place ? place : end;
}

/* Return the timestamp of a line of at least HEAD bytes, OTHER if it does not begin as a record. */
static int64_t stamp_of(const char *at)
{
    for (int i = 0; i < HEAD; i++) {
        char shape = "00/00/0000 00:00:00;K;"[i];
        if (!(shape == '0' ? is_digit(at[i]) : shape == 'K' ? is_word(at[i]) : at[i] == shape))
            return OTHER;
    }
    int date = two(at) * 1000000 + two(at + 3) * 10000 + two(at + 6) * 100 + two(at + 8);
    int second = (two(at + 11) * 60 + two(at + 14)) * 60 + two(at + 17);
    return second > 86400 ? OTHER : date * INT64_C(100000) + second;
}

static uint8_t hash_of(const char *key, int64_t length)
{
    return length ? length * 31 + key[0] * 7 + key[length / 2] * 3 + key[length - 1] : 0;
}

/* Return whether a key and `=` begin at a word, OTHER if a character beyond ASCII decides that. */
static int begins_value(const char *at, const char *end)
{
    if (is_digit(*at) || !is_word(*at))
        return 0;
    while (at < end && (is_word(*at) || *at == '.'))
        at++;
    return at < end && (*at & 0x80) ? OTHER : at < end && *at == '=';
}

/* Read the values between `at` and `end` into the cells of a record, and return their number or OTHER.
 * heads: the first column of each hash. blanks: values may contain blanks, and a word without a key continues a value;
 * otherwise BLANKS is returned for such a word. */
static int64_t read_values(struct block *b, const int32_t *heads, struct cell *cells, const char *at, const char *end,
                           int blanks)
{
    int64_t count = 0;
    for (int64_t column = 1; column < b->columns; column++)
        cells[column] = (struct cell){0, -1, 0};
    for (; blanks && at < end && is_space(*at); at++) {}
    for (; blanks && at < end && is_space(end[-1]); end--) {}
    if (blanks && at < end && ((*at | end[-1]) & 0x80))
        return OTHER; /* perhaps a space */
    for (const char *stop; at < end; at = stop) {
        if (*at == ' ') {
            stop = at + 1;
            continue;
        }
        stop = find(' ', at, end);
        for (const char *word = stop; blanks && word < end; stop = word = find(' ', word, end)) {
            while (*word == ' ') /* the last byte is none */
                word++;
            int begins = begins_value(word, end);
            if (begins == OTHER)
                return OTHER;
            if (begins)
                break;
        }
        const char *equals = find('=', at, stop);
        if (equals == stop) {
            if (!blanks)
                return BLANKS;
            continue;
        }
        int64_t length = equals - at, column = heads[hash_of(at, length)];
        for (; column; column = b->next[column]) {
            int64_t start = b->key_ends[column - 1];
            if (b->key_ends[column] - start == length && !memcmp(b->keys + start, at, length))
                break;
        }
        if (!column && b->every_key)
            return OTHER;
        int32_t first = cells[column].length < 0 ? at - b->text : cells[column].first;
        if (column)
            cells[column] = (struct cell){equals + 1 - b->text, stop - equals - 1, first};
        count++;
    }
    return count;
}

/* Return the number of lines. Python takes as long for it as tracebed_pbs_read for the records. */
int64_t tracebed_pbs_lines(const char *text, int64_t length)
{
    int64_t lines = 0;
    for (const char *end = text + length; text < end; lines++)
        text = find('\n', text, end) + 1;
    return lines;
}

/* Cut a block into columns. Return 0, or OTHER if that is left to Python. */
int64_t tracebed_pbs_read(struct block *b)
{
    int32_t heads[256] = {0};
    const char *at = b->text, *stop, *end = at + b->length;
    int64_t used = 0;
    for (int64_t column = 1; column < b->columns; column++) {
        int64_t start = b->key_ends[column - 1];
        uint8_t hash = hash_of(b->keys + start, b->key_ends[column] - start);
        b->next[column] = heads[hash];
        heads[hash] = column;
    }
    for (int64_t row = 0; row < b->rows; row++, at = stop + (stop < end)) {
        const char *last = stop = find('\n', at, end);
        while (last > at && last[-1] == '\r')
            last--;
        if (last - at <= HEAD || (b->stamps[row] = stamp_of(at)) == OTHER)
            return OTHER;
        const char *job = at + HEAD, *after = find(';', job, last);
        if (after == job || after == last)
            return OTHER;
        struct cell *cells = b->cells + row * b->columns;
        cells[0] = (struct cell){job - b->text, after - job, 0};
        b->kinds[row] = at[HEAD - 2];
        int64_t count = read_values(b, heads, cells, after + 1, last, 0);
        if (count == BLANKS && !(count = read_values(b, heads, cells, after + 1, last, 1))
            && (b->kinds[row] == 'E' || b->kinds[row] == 'S'))
            return OTHER;
        if (count < 0)
            return OTHER;
    }
    for (int64_t column = 0; column < b->columns; column++) {
        int64_t *offsets = b->offsets + column * (b->rows + 1);
        uint8_t *valid = b->valid + column * (b->rows / 8 + 1);
        for (int64_t row = 0; row < b->rows; row++) {
            const struct cell *cell = b->cells + row * b->columns + column;
            offsets[row] = used;
            if (cell->length < 0)
                continue;
            memcpy(b->data + used, b->text + cell->start, cell->length);
            used += cell->length;
            valid[row / 8] |= 1 << row % 8;
        }
        offsets[b->rows] = used;
    }
    return 0;
}
