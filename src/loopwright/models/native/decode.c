/* One decode step of a Llama-like model in float32: a token for each of many sequences, from their ids to logits.
 *
 * One call, because between torch's kernels a step of a small model mostly waits, and one parallel region, because even
 * a large one waits for threads that come and go. Every number is computed by one thread in one order, however many
 * threads and neighbours there are: what a sequence gets does not depend on who else is in the batch.
 *
 * Plain C with the vectors of gcc. Nothing here allocates, and nothing checks: models/native/step.py has
 * done that. Structures are mirrored in models/native/structures.py, field by field.
 */
#ifdef __clang__
#error "this compiler is clang, whose OpenMP brings threads of its own beside torch's"
#endif
#include <omp.h>
#include <stdint.h>

#ifdef LANES /* WIDE and ROWS too: whoever compiles has chosen. */
#elif defined(__AVX512F__)
#define LANES 16
#define WIDE 3
#define ROWS 8
#elif defined(__AVX__)
#define LANES 8
#define WIDE 2
#define ROWS 6
#else
#define LANES 4
#define WIDE 2
#define ROWS 4
#endif
/* Numbers in a vector; vectors in a panel's row; rows of a product that are computed together. It keeps ROWS x WIDE
 * vectors of sums in registers: as many as there are, but for those that it reads with. */
#define PANEL (LANES * WIDE)
#define CHUNK 64 /* Keys that are looked at together. They stay in the cache while all that share a prompt do so. */
#define RUN 8    /* Sequences behind one prompt that look at it together; more would leave other threads idle. */
#define ASKING 4 /* Queries of one head of keys that are answered together. */
#define GROUP 64 /* Queries that one head of keys may have. */
#define BLOCKED -1e30f
#ifndef SMALL_STEP
#define SMALL_STEP 1e7 /* Multiplications of a step that one thread does sooner than two would agree. */
#endif

typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t bits __attribute__((vector_size(4 * LANES)));
#define INLINE static inline __attribute__((always_inline))

typedef struct {
    const float *panels; /* [outputs / PANEL][inputs][PANEL], the last one filled up with zeros. */
    const float *bias;   /* or null */
    int64_t outputs, inputs;
} product;

typedef struct {
    const float *weight; /* or null */
    double epsilon;
} norm;

typedef struct {
    norm before_attention;
    product projection; /* To queries, keys and values, one behind the other. */
    norm query, key;
    product output;
    norm before_feed_forward;
    product gate, up, down;
    double scaling;
    int64_t window; /* How many positions back a key may be, itself included; 0: any. */
} layer;

typedef struct {
    int64_t layers, hidden, heads, key_heads, dim, inner;
    const layer *layer;
    norm last;
    product head;
    const float *table; /* of embeddings */
} model;

typedef struct {
    int64_t arena, row, length;                      /* Its own keys, with room for the newest, which is counted. */
    int64_t prompt_arena, prompt_row, prompt_length; /* Those before, if it shares a prompt; else the arena is -1. */
} cell;

typedef struct {
    int64_t tokens, arenas;
    const int64_t *ids;
    const float *angles; /* [tokens][cosines, then sines] */
    const cell *cells;
    const int64_t *capacities; /* [arenas], multiples of 2 * LANES, which is at most 32 */
    float *const *keys;        /* [layers][arenas], each [rows][key heads][dim][capacity] */
    float *const *values;      /* [layers][arenas], each [rows][key heads][capacity][dim] */
} batch;

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE lanes all(float x) { return x - (lanes){0}; }
INLINE lanes at(const float *x) { return *(const lanes *)x; }
INLINE void put(float *x, lanes y) { *(lanes *)x = y; }

INLINE float sum(lanes x) {
    float total = 0;
    for (int i = 0; i < LANES; i++) total += x[i];
    return total;
}

/* e^x to the last bit or two, for x of -87 to 88; others are moved there. Not a number stays not a number. */
INLINE lanes exponential(lanes x) {
    const bits low = x < all(-87.0f), high = x > all(88.0f);
    x = (lanes)(((bits)x & ~(low | high)) | ((bits)all(-87.0f) & low) | ((bits)all(88.0f) & high));
    const lanes shifted = x * 1.44269504f + 12582912.0f; /* Its last bits are the power of two. */
    const lanes power = shifted - 12582912.0f;
    const lanes rest = x - power * 0.693359375f + power * 2.12194440e-4f;
    lanes y = all(1.9875691500e-4f);
    y = y * rest + 1.3981999507e-3f;
    y = y * rest + 8.3334519073e-3f;
    y = y * rest + 4.1665795894e-2f;
    y = y * rest + 1.6666665459e-1f;
    y = y * rest + 5.0000001201e-1f;
    y = y * rest * rest + rest + 1.0f;
    return y * (lanes)(((bits)shifted << 23) + 0x3f800000);
}

static float root_mean_square_inverse(const float *x, int64_t size, double epsilon) {
    lanes squares = {0};
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) squares += at(x + i) * at(x + i);
    float total = sum(squares);
    for (; i < size; i++) total += x[i] * x[i];
    return 1.0f / __builtin_sqrtf(total / (float)size + (float)epsilon);
}

static void normalise(norm by, const float *x, int64_t size, float *out) {
    const float scale = root_mean_square_inverse(x, size, by.epsilon);
    for (int64_t i = 0; i < size; i++) out[i] = x[i] * scale * by.weight[i];
}

/* Products. Rows of `x` with one panel: a weight is read once for ROWS of them, from a cache that holds the panel. */

INLINE void multiply(lanes out[ROWS][WIDE], const float *x, int64_t stride, const float *panel, int64_t inputs,
                     const int rows) {
    lanes sums[ROWS][WIDE];
    for (int r = 0; r < rows; r++)
        for (int w = 0; w < WIDE; w++) sums[r][w] = (lanes){0};
    for (int64_t i = 0; i < inputs; i++) {
        lanes weights[WIDE];
        for (int w = 0; w < WIDE; w++) weights[w] = at(panel + i * PANEL + w * LANES);
        for (int r = 0; r < rows; r++) {
            const float value = x[r * stride + i];
            for (int w = 0; w < WIDE; w++) sums[r][w] += value * weights[w];
        }
    }
    for (int r = 0; r < rows; r++)
        for (int w = 0; w < WIDE; w++) out[r][w] = sums[r][w];
}

static void rows_by_panel(lanes sums[ROWS][WIDE], const float *x, int64_t stride, const float *panel, int64_t inputs,
                          int64_t rows) {
    switch (rows) { /* Known when compiled, so that sums stay in registers. */
#if ROWS == 8
    case 8: multiply(sums, x, stride, panel, inputs, 8); break;
    case 7: multiply(sums, x, stride, panel, inputs, 7); break;
#endif
#if ROWS >= 6
    case 6: multiply(sums, x, stride, panel, inputs, 6); break;
    case 5: multiply(sums, x, stride, panel, inputs, 5); break;
#endif
    case 4: multiply(sums, x, stride, panel, inputs, 4); break;
    case 3: multiply(sums, x, stride, panel, inputs, 3); break;
    case 2: multiply(sums, x, stride, panel, inputs, 2); break;
    default: multiply(sums, x, stride, panel, inputs, 1);
    }
}

INLINE int64_t panels_of(const product *by) { return (by->outputs + PANEL - 1) / PANEL; }
INLINE const float *panel_of(const product *by, int64_t panel) { return by->panels + panel * by->inputs * PANEL; }

/* The bias of a panel; zeros where there is none. */
INLINE void read_bias(float bias[PANEL], const product *by, int64_t panel) {
    for (int64_t i = 0; i < PANEL; i++) {
        const int64_t output = panel * PANEL + i;
        bias[i] = by->bias && output < by->outputs ? by->bias[output] : 0.0f;
    }
}

INLINE void write_row(float *out, const float *numbers, int64_t count, int adds) {
    if (count >= PANEL) {
        for (int w = 0; w < PANEL; w += LANES) {
            const lanes before = adds ? at(out + w) : all(0.0f);
            put(out + w, before + at(numbers + w));
        }
    } else {
        for (int64_t i = 0; i < count; i++) out[i] = adds ? out[i] + numbers[i] : numbers[i];
    }
}

/* Panels that a thread takes at a time: enough to be worth the asking, and few enough that all threads get some. */
static int64_t at_once(int64_t panels, int64_t tokens) {
    return 1 + least(32 / tokens, panels / (4 * omp_get_num_threads()));
}

/* out (+)= x * weights + bias, for rows of `tokens`. Called by all threads. */
static void linear(const product *by, const float *x, int64_t tokens, float *out, int adds) {
    const int64_t together = at_once(panels_of(by), tokens);
#pragma omp for schedule(dynamic, together)
    for (int64_t panel = 0; panel < panels_of(by); panel++) {
        lanes sums[ROWS][WIDE];
        float bias[PANEL], row[PANEL];
        read_bias(bias, by, panel);
        for (int64_t t = 0; t < tokens; t += ROWS) {
            const int64_t rows = least(ROWS, tokens - t);
            rows_by_panel(sums, x + t * by->inputs, by->inputs, panel_of(by, panel), by->inputs, rows);
            for (int64_t r = 0; r < rows; r++) {
                for (int w = 0; w < WIDE; w++) put(row + w * LANES, sums[r][w] + at(bias + w * LANES));
                write_row(out + (t + r) * by->outputs + panel * PANEL, row, by->outputs - panel * PANEL, adds);
            }
        }
    }
}

/* out = silu(x * gate) * (x * up). Called by all threads. */
static void gated(const product *gate, const product *up, const float *x, int64_t tokens, float *out) {
    const int64_t together = at_once(panels_of(gate), 2 * tokens);
#pragma omp for schedule(dynamic, together)
    for (int64_t panel = 0; panel < panels_of(gate); panel++) {
        lanes gates[ROWS][WIDE], ups[ROWS][WIDE];
        float gate_bias[PANEL], up_bias[PANEL], row[PANEL];
        read_bias(gate_bias, gate, panel);
        read_bias(up_bias, up, panel);
        for (int64_t t = 0; t < tokens; t += ROWS) {
            const int64_t rows = least(ROWS, tokens - t);
            const float *here = x + t * gate->inputs;
            rows_by_panel(gates, here, gate->inputs, panel_of(gate, panel), gate->inputs, rows);
            rows_by_panel(ups, here, up->inputs, panel_of(up, panel), up->inputs, rows);
            for (int64_t r = 0; r < rows; r++) {
                for (int w = 0; w < WIDE; w++) {
                    const lanes g = gates[r][w] + at(gate_bias + w * LANES);
                    put(row + w * LANES, g / (exponential(-g) + 1.0f) * (ups[r][w] + at(up_bias + w * LANES)));
                }
                write_row(out + (t + r) * gate->outputs + panel * PANEL, row, gate->outputs - panel * PANEL, 0);
            }
        }
    }
}

/* Attention, of queries that ask the same head of keys. What they have seen so far is a weighted sum of values, `seen`,
 * not yet divided by the sum of its weights, `total`, of which the largest would be e^0: `most` was taken off scores. */

INLINE void score(float scores[ASKING][CHUNK], const float *queries, int64_t dim, const float *keys, int64_t capacity,
                  int64_t count, const int asking) {
    for (int64_t t = 0; t < count; t += 2 * LANES) {
        lanes near[ASKING], far[ASKING];
        for (int q = 0; q < asking; q++) near[q] = far[q] = (lanes){0};
        for (int64_t d = 0; d < dim; d++) {
            const lanes one = at(keys + d * capacity + t), other = at(keys + d * capacity + t + LANES);
            for (int q = 0; q < asking; q++) {
                near[q] += queries[q * dim + d] * one;
                far[q] += queries[q * dim + d] * other;
            }
        }
        for (int q = 0; q < asking; q++) {
            put(scores[q] + t, near[q]);
            put(scores[q] + t + LANES, far[q]);
        }
    }
}

/* Turn scores into weights, and what was seen before into the same measure. Keys outside of `from` to `to` weigh next
 * to nothing, and nobody reads what they weigh. */
INLINE void weigh(float scores[CHUNK], int64_t from, int64_t to, int64_t count, float scaling, float *most, float *total,
                  float *seen, int64_t dim) {
    float largest = *most;
    for (int64_t t = 0; t < count; t++) {
        scores[t] = t < from || t >= to ? BLOCKED : scores[t] * scaling;
        /* Not a number is not larger, and has to be found all the same. */
        largest = scores[t] > largest || scores[t] != scores[t] ? scores[t] : largest;
    }
    const float factor = exponential(all(*most - largest))[0];
    lanes weights = {0};
    for (int64_t t = 0; t < count; t += LANES) {
        const lanes weight = exponential(at(scores + t) - largest);
        put(scores + t, weight);
        weights += weight;
    }
    *total = *total * factor + sum(weights);
    *most = largest;
    for (int64_t d = 0; d < dim; d += LANES) put(seen + d, at(seen + d) * factor);
}

INLINE void add_values(float *seen, float scores[ASKING][CHUNK], const float *values, int64_t dim, int64_t from,
                       int64_t to, const int asking, const int wide) {
    lanes sums[ASKING][2];
    for (int q = 0; q < asking; q++)
        for (int w = 0; w < wide; w++) sums[q][w] = at(seen + q * dim + w * LANES);
    for (int64_t t = from; t < to; t++)
        for (int w = 0; w < wide; w++) {
            const lanes value = at(values + t * dim + w * LANES);
            for (int q = 0; q < asking; q++) sums[q][w] += scores[q][t] * value;
        }
    for (int q = 0; q < asking; q++)
        for (int w = 0; w < wide; w++) put(seen + q * dim + w * LANES, sums[q][w]);
}

INLINE void look(const float *queries, float *seen, float *most, float *total, int64_t dim, float scaling,
                 const float *keys, const float *values, int64_t capacity, int64_t from, int64_t to, const int asking) {
    float scores[ASKING][CHUNK];
    const int64_t count = (to + 2 * LANES - 1) / (2 * LANES) * (2 * LANES);
    score(scores, queries, dim, keys, capacity, count, asking);
    for (int q = 0; q < asking; q++)
        weigh(scores[q], from, to, count, scaling, most + q, total + q, seen + q * dim, dim);
    int64_t d = 0;
    for (; d + 2 * LANES <= dim; d += 2 * LANES) add_values(seen + d, scores, values + d, dim, from, to, asking, 2);
    if (d < dim) add_values(seen + d, scores, values + d, dim, from, to, asking, 1);
}

/* Let the queries of one head of keys look at the keys `from` to `to` (at most CHUNK) behind `keys`. */
static void look_at(const float *queries, int64_t group, float *seen, float *most, float *total, int64_t dim,
                    float scaling, const float *keys, const float *values, int64_t capacity, int64_t from, int64_t to) {
    if (from >= to) return;
    for (int64_t q = 0; q < group; q += ASKING) {
        const float *asked = queries + q * dim;
        float *answer = seen + q * dim;
        switch (least(ASKING, group - q)) {
        case 4: look(asked, answer, most + q, total + q, dim, scaling, keys, values, capacity, from, to, 4); break;
        case 3: look(asked, answer, most + q, total + q, dim, scaling, keys, values, capacity, from, to, 3); break;
        case 2: look(asked, answer, most + q, total + q, dim, scaling, keys, values, capacity, from, to, 2); break;
        default: look(asked, answer, most + q, total + q, dim, scaling, keys, values, capacity, from, to, 1);
        }
    }
}

/* Rotary embedding of one head in place, after its norm if it has one. Pairs are half a head apart. */
static void turn(float *head, norm by, int64_t dim, const float *angles) {
    const float *cosines = angles, *sines = angles + dim;
    if (by.weight) normalise(by, head, dim, head);
    for (int64_t d = 0; d < dim / 2; d++) {
        const float low = head[d], high = head[d + dim / 2];
        head[d] = low * cosines[d] - high * sines[d];
        head[d + dim / 2] = high * cosines[d + dim / 2] + low * sines[d + dim / 2];
    }
}

/* One head of keys, for sequences `first` to `end`, which share their prompt or are one. */
static void attend(const model *m, const batch *b, int64_t number, int64_t head, int64_t first, int64_t end,
                   float *projected, float *seen) {
    const layer *l = m->layer + number;
    const int64_t dim = m->dim, group = m->heads / m->key_heads, width = (m->heads + 2 * m->key_heads) * dim;
    float *const *all_keys = b->keys + number * b->arenas, *const *all_values = b->values + number * b->arenas;
    float most[RUN][GROUP], total[RUN][GROUP];
    int64_t nearest[RUN]; /* The first position that is not too far back. */
    for (int64_t t = first; t < end; t++) {
        const cell *c = b->cells + t;
        const float *angles = b->angles + t * 2 * dim;
        float *queries = projected + t * width + head * group * dim;
        float *key = projected + t * width + (m->heads + head) * dim, *value = key + m->key_heads * dim;
        float *answers = seen + (t * m->heads + head * group) * dim;
        for (int64_t q = 0; q < group; q++) {
            turn(queries + q * dim, l->query, dim, angles);
            most[t - first][q] = BLOCKED;
            total[t - first][q] = 0.0f;
        }
        for (int64_t d = 0; d < group * dim; d++) answers[d] = 0.0f;
        turn(key, l->key, dim, angles);
        const int64_t capacity = b->capacities[c->arena], stretch = (c->row * m->key_heads + head) * dim * capacity;
        for (int64_t d = 0; d < dim; d++) {
            all_keys[c->arena][stretch + d * capacity + c->length - 1] = key[d];
            all_values[c->arena][stretch + (c->length - 1) * dim + d] = value[d];
        }
        const int64_t before = c->prompt_arena < 0 ? 0 : c->prompt_length, length = before + c->length;
        nearest[t - first] = l->window && length > l->window ? length - l->window : 0;
    }
    const cell *shared = b->cells + first;
    for (int64_t start = 0; shared->prompt_arena >= 0 && start < shared->prompt_length; start += CHUNK) {
        const int64_t capacity = b->capacities[shared->prompt_arena];
        const int64_t stretch = (shared->prompt_row * m->key_heads + head) * dim * capacity;
        const float *keys = all_keys[shared->prompt_arena] + stretch + start;
        const float *values = all_values[shared->prompt_arena] + stretch + start * dim;
        const int64_t to = least(CHUNK, shared->prompt_length - start);
        for (int64_t t = first; t < end; t++) {
            const int64_t from = nearest[t - first] > start ? nearest[t - first] - start : 0;
            look_at(projected + t * width + head * group * dim, group, seen + (t * m->heads + head * group) * dim,
                    most[t - first], total[t - first], dim, (float)l->scaling, keys, values, capacity, from, to);
        }
    }
    for (int64_t t = first; t < end; t++) {
        const cell *c = b->cells + t;
        const int64_t capacity = b->capacities[c->arena], stretch = (c->row * m->key_heads + head) * dim * capacity;
        const int64_t before = c->prompt_arena < 0 ? 0 : c->prompt_length;
        float *answers = seen + (t * m->heads + head * group) * dim;
        for (int64_t start = 0; start < c->length; start += CHUNK) {
            const int64_t near = nearest[t - first] - before - start, from = near > 0 ? near : 0;
            look_at(projected + t * width + head * group * dim, group, answers, most[t - first], total[t - first], dim,
                    (float)l->scaling, all_keys[c->arena] + stretch + start, all_values[c->arena] + stretch + start * dim,
                    capacity, from, least(CHUNK, c->length - start));
        }
        for (int64_t q = 0; q < group; q++)
            for (int64_t d = 0; d < dim; d++) answers[q * dim + d] /= total[t - first][q];
    }
}

/* Where the run of sequences ends that begins with `first`. */
static int64_t end_of_run(const batch *b, int64_t first) {
    const cell *c = b->cells + first;
    int64_t end = first + 1;
    while (c->prompt_arena >= 0 && end < b->tokens && end - first < RUN && c[end - first].prompt_arena == c->prompt_arena &&
           c[end - first].prompt_row == c->prompt_row)
        end++;
    return end;
}

/* `ends` has room for a number per token. Called by all threads. */
static void attention(const model *m, const batch *b, int64_t number, const int64_t *ends, int64_t runs,
                      float *projected, float *seen) {
#pragma omp for schedule(dynamic, 1)
    for (int64_t item = 0; item < runs * m->key_heads; item++) {
        const int64_t run = item / m->key_heads;
        attend(m, b, number, item % m->key_heads, run ? ends[run - 1] : 0, ends[run], projected, seen);
    }
}

static void normalise_all(norm by, const float *x, int64_t tokens, int64_t size, float *out) {
#pragma omp for schedule(static)
    for (int64_t t = 0; t < tokens; t++) normalise(by, x + t * size, size, out + t * size);
}

static double multiplications(const model *m, int64_t tokens) {
    const double per_layer = (double)m->hidden * ((2 * m->heads + 2 * m->key_heads) * m->dim + 3 * m->inner);
    return tokens * (m->layers * per_layer + (double)m->hidden * m->head.outputs);
}

/* Numbers per panel's row, which whoever packs has to know. */
int64_t loopwright_panel(void) { return PANEL; }

/* What dim has to be a multiple of; capacities, of twice as many. */
int64_t loopwright_lanes(void) { return LANES; }

/* Lay out a weight [outputs, inputs] in panels. */
void loopwright_pack(const float *weight, int64_t outputs, int64_t inputs, float *panels, int threads) {
    const int64_t whole = outputs / PANEL;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t panel = 0; panel < whole; panel++)
        for (int64_t i = 0; i < inputs; i++)
            for (int64_t o = 0; o < PANEL; o++)
                panels[(panel * inputs + i) * PANEL + o] = weight[(panel * PANEL + o) * inputs + i];
    if (whole * PANEL < outputs)
        for (int64_t i = 0; i < inputs; i++)
            for (int64_t o = 0; o < PANEL; o++) {
                const int64_t output = whole * PANEL + o;
                panels[(whole * inputs + i) * PANEL + o] = output < outputs ? weight[output * inputs + i] : 0.0f;
            }
}

/* out = x * weights + bias, and nothing else. */
void loopwright_product(const product *by, const float *x, int64_t tokens, float *out, int threads) {
#pragma omp parallel num_threads(threads)
    linear(by, x, tokens, out, 0);
}

/* Write logits [tokens, vocabulary], and the newest keys and values to their rows. `floats` has room for
 * 2 * hidden + (2 * heads + 2 * key heads) * dim + inner numbers per token, `ends` for one. */
void loopwright_step(const model *m, const batch *b, float *floats, int64_t *ends, float *logits, int threads) {
    const int64_t tokens = b->tokens, hidden = m->hidden;
    float *x = floats, *normed = x + tokens * hidden, *projected = normed + tokens * hidden;
    float *seen = projected + tokens * (m->heads + 2 * m->key_heads) * m->dim;
    float *inside = seen + tokens * m->heads * m->dim;
    int64_t runs = 0;
    for (int64_t t = 0; t < tokens; t = ends[runs++]) ends[runs] = end_of_run(b, t);
#pragma omp parallel num_threads(multiplications(m, tokens) < SMALL_STEP ? 1 : threads)
    {
#pragma omp for schedule(static)
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t i = 0; i < hidden; i++) x[t * hidden + i] = m->table[b->ids[t] * hidden + i];
        for (int64_t number = 0; number < m->layers; number++) {
            const layer *l = m->layer + number;
            normalise_all(l->before_attention, x, tokens, hidden, normed);
            linear(&l->projection, normed, tokens, projected, 0);
            attention(m, b, number, ends, runs, projected, seen);
            linear(&l->output, seen, tokens, x, 1);
            normalise_all(l->before_feed_forward, x, tokens, hidden, normed);
            gated(&l->gate, &l->up, normed, tokens, inside);
            linear(&l->down, inside, tokens, x, 1);
        }
        normalise_all(m->last, x, tokens, hidden, normed);
        linear(&m->head, normed, tokens, logits, 0);
    }
}
