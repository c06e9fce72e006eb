// A stack of Transformer blocks for a list of tokens, one vector per token. The caller owns the memory of the keys and
// values.
//
// The results equal those of attendo.nn.blocks in float32 up to rounding, which the tests check. The result of a token
// does not depend on the other tokens of a call, bit for bit.
#if defined(__linux__)
#include <malloc.h>
#include <sys/mman.h>
#endif

#include "attention.h"
#include "candidates.h"
#include "packing.h"
#include "products.h"

struct SelfAttention {
    Matrix project;  // stacked: queries, keys, values
    Matrix out;
    Norm norm, out_norm;  // of the sublayer, and of its output before the sum
    Heads heads;
};

struct CrossAttention {
    Matrix project;  // queries
    Matrix out;
    Norm norm, out_norm;
    Heads heads;  // n 0: no cross-attention
};

struct FeedForward {
    Matrix in, gate, out;
    Norm norm, out_norm;
    int64_t activation;
};

struct Block {
    SelfAttention self;
    CrossAttention cross;
    FeedForward feed_forward;
};

struct Stack {
    int64_t n_blocks, width, norm_first;
    const Block* blocks;
    Norm norm;
};

struct Embedding {
    int64_t n;  // ids from 0 to n - 1
    int64_t bits;  // of the weights: 32 or 16
    const void* weight;
    double scale;
    const float* positions;  // [positions][position_width], or null
    int64_t position_width;  // width; or 1, a single number that is added to all entries
    Norm norm;
};

// The tokens of one call. In an encoder, each token attends to all tokens of its text. In a decoder, it attends to
// itself and to the earlier tokens of its row, whose keys and values are in `cache`, and to the memory of its source.
struct Tokens {
    int64_t n;
    int64_t apart;  // 1: each token is from another row, so no token needs another
    const int64_t *ids, *positions, *rows;
    const int64_t *text_start, *text_length;  // encoder: the tokens of each row in this call
    void* cache;                              // decoder: [blocks][slots][capacity][key, value]
    int64_t cache_bits, block_stride, capacity;  // 32, 16 (bfloat16) or 8
    int32_t* slots;                           // [rows][capacity]: the slot of each position of a row
    const int32_t* own_slot;                  // [rows]: the slot that a row writes to
    const float* memory;                      // [blocks][source tokens][key, value]
    int64_t memory_stride;
    const int64_t *memory_start, *memory_length;  // of each row
};

namespace {

// Memory that a thread reuses in its next call.
struct Workspace {
    std::vector<float> states, normed, projected, mixed, inner, gate, scale;
    std::vector<int8_t> numbers;
    std::vector<int32_t> offsets;

    Quantized quantized() { return {numbers.data(), scale.data(), offsets.data()}; }
};

// Runs one sublayer after the other. Each member of the team has a share of the tokens. In a matrix multiplication, it
// has a share of the outputs of all tokens instead, so the members wait for each other before and after.
class Run {
   public:
    Run(const Stack& stack, const Tokens& tokens, Workspace& space, Member& member)
        : stack_(stack), tokens_(tokens), space_(space), member_(member) {
        member.share(tokens.n, first_, last_);
    }

    void embed(const Embedding& embedding) {
        const int64_t width = stack_.width;
        for (int64_t i = first_; i < last_; i++) {
            const float* place = embedding.positions == nullptr
                ? nullptr
                : embedding.positions + tokens_.positions[i] * embedding.position_width;
            const float scale = static_cast<float>(embedding.scale);
            float* out = state(i);
            for (int64_t k = 0, at = tokens_.ids[i] * width; k < width; k++, at++) {
                out[k] = scale * (embedding.bits == 16 ? static_cast<const Bfloat*>(embedding.weight)[at]
                                                       : static_cast<const float*>(embedding.weight)[at]);
                if (place != nullptr) out[k] += place[embedding.position_width == 1 ? 0 : k];
            }
            if (embedding.norm.kind != NONE) normalize(embedding.norm, out, out);
        }
    }

    void blocks() {
        for (int64_t number = 0; number < stack_.n_blocks; number++) {
            const Block& block = stack_.blocks[number];
            self_attention(block.self, number);
            if (block.cross.heads.n > 0) cross_attention(block.cross, number);
            feed_forward(block.feed_forward);
        }
        for (int64_t i = first_; i < last_; i++) normalize(stack_.norm, state(i), state(i));
        member_.wait();
    }

   private:
    float* state(int64_t i) { return space_.states.data() + i * stack_.width; }

    // Prepares the input of a sublayer in the number format of its first matrix.
    void enter(const Norm& norm, const Matrix& matrix) {
        for (int64_t i = first_; i < last_; i++) {
            float* x = state(i);
            if (stack_.norm_first) {
                float* normed = space_.normed.data() + i * stack_.width;
                normalize(norm, x, normed);
                x = normed;
            }
            prepare(matrix, x, i);
        }
        member_.wait();
    }

    // Ends a sublayer, whose output was added to the states. With the norm last, the states are normalized now.
    void leave(const Norm& norm) {
        member_.wait();
        if (stack_.norm_first) return;
        for (int64_t i = first_; i < last_; i++) normalize(norm, state(i), state(i));
    }

    void prepare(const Matrix& matrix, const float* x, int64_t i) {
        if (matrix.bits <= 8) quantize(matrix, x, space_.quantized().row(i, matrix.n_in));
    }

    void multiply_by(const Matrix& matrix, const float* x, float* out, const float* add) {
        const Target to{out, matrix.n_out, add};
        if (matrix.bits <= 8)
            product(member_, matrix, space_.quantized(), tokens_.n, to);
        else
            product(member_, matrix, x, tokens_.n, to);
    }

    const float* entered() { return stack_.norm_first ? space_.normed.data() : space_.states.data(); }

    void self_attention(const SelfAttention& attention, int64_t number) {
        if (tokens_.cache_bits == 8)
            self_attention<Byte>(attention, number);
        else if (tokens_.cache_bits == 16)
            self_attention<Bfloat>(attention, number);
        else
            self_attention<float>(attention, number);
    }

    template <class Number>
    void self_attention(const SelfAttention& attention, int64_t number) {
        const Heads& heads = attention.heads;
        enter(attention.norm, attention.project);
        multiply_by(attention.project, entered(), space_.projected.data(), nullptr);
        member_.wait();
        const int64_t stride = attention.project.n_out;
        const int64_t length = length_of<Number>(heads.memory());
        Number* cache = static_cast<Number*>(tokens_.cache) + number * tokens_.block_stride;
        for (int64_t i = first_; i < last_; i++) {
            float* query = space_.projected.data() + i * stride;
            const int64_t row = tokens_.rows[i], position = tokens_.positions[i];
            ::prepare(heads, heads.n + heads.n_kv, query, position);
            if (tokens_.text_start != nullptr) continue;
            const int64_t place = tokens_.own_slot[row] * tokens_.capacity + position;
            copy(cache + place * length, query + heads.queries(), heads.memory());
            if (number == 0) tokens_.slots[row * tokens_.capacity + position] = tokens_.own_slot[row];
        }
        member_.wait();
        if (tokens_.text_start != nullptr)
            attend<float>(heads, attention, stride, [&](int64_t i) {
                const int64_t row = tokens_.rows[i];
                const float* keys = space_.projected.data() + tokens_.text_start[row] * stride + heads.queries();
                return Places<float>{keys, stride, tokens_.text_length[row], nullptr, 0};
            });
        else
            attend<Number>(heads, attention, stride, [&](int64_t i) {
                const int32_t* slots = tokens_.slots + tokens_.rows[i] * tokens_.capacity;
                return Places<Number>{cache, length, tokens_.positions[i] + 1, slots, tokens_.capacity};
            });
    }

    void cross_attention(const CrossAttention& attention, int64_t number) {
        const Heads& heads = attention.heads;
        enter(attention.norm, attention.project);
        multiply_by(attention.project, entered(), space_.projected.data(), nullptr);
        member_.wait();
        for (int64_t i = first_; i < last_; i++)
            ::prepare(heads, heads.n, space_.projected.data() + i * heads.queries(), tokens_.positions[i]);
        member_.wait();
        const float* memory = tokens_.memory + number * tokens_.memory_stride;
        attend<float>(heads, attention, heads.queries(), [&](int64_t i) {
            const int64_t row = tokens_.rows[i];
            const float* keys = memory + tokens_.memory_start[row] * heads.memory();
            return Places<float>{keys, heads.memory(), tokens_.memory_length[row], nullptr, 0};
        });
    }

    // Computes the attention of the projected queries, whose keys and values are at `places_of(token)`, and adds its
    // output to the states. Neighboring tokens of the same row are computed together. The members take turns, because
    // later tokens attend to more positions.
    template <class Number, class Layer, class PlacesOf>
    void attend(const Heads& heads, const Layer& layer, int64_t stride, const PlacesOf& places_of) {
        const int64_t most = std::min(QUERIES, (tokens_.n + member_.size - 1) / member_.size);
        for (int64_t first = member_.number * most; first < tokens_.n; first += member_.size * most) {
            const int64_t end = std::min(first + most, tokens_.n);
            for (int64_t i = first, next; i < end; i = next) {
                Places<Number> places = places_of(i);
                for (next = i + 1; next < end && places.begin(places_of(next)); next++) places = places_of(next);
                Attention<Number> attention(heads, places, next - i, rows_, room_);
                for (int64_t at = i; at < next; at++)
                    attention.set(at - i, space_.projected.data() + at * stride, tokens_.positions[at], places_of(at).n,
                                  space_.mixed.data() + at * heads.mixed());
                attention.run();
                for (int64_t at = i; at < next; at++) prepare(layer.out, space_.mixed.data() + at * heads.mixed(), at);
            }
        }
        back(layer.out, layer.norm, layer.out_norm, space_.mixed);
    }

    void feed_forward(const FeedForward& net) {
        const int64_t width = net.in.n_out;
        enter(net.norm, net.in);
        multiply_by(net.in, entered(), space_.inner.data(), nullptr);
        if (net.gate.n_out > 0) multiply_by(net.gate, entered(), space_.gate.data(), nullptr);
        member_.wait();
        for (int64_t i = first_; i < last_; i++) {
            float* inner = space_.inner.data() + i * width;
            if (net.gate.n_out > 0) {
                float* gate = space_.gate.data() + i * width;
                each(gate, gate, width, [&](Floats x) { return activated(x, net.activation); });
                for (int64_t k = 0; k < width; k++) inner[k] *= gate[k];
            } else {
                each(inner, inner, width, [&](Floats x) { return activated(x, net.activation); });
            }
            prepare(net.out, inner, i);
        }
        back(net.out, net.norm, net.out_norm, space_.inner);
    }

    // Multiplies by the last matrix of a sublayer, and adds the result to the states.
    void back(const Matrix& matrix, const Norm& norm, const Norm& out_norm, const std::vector<float>& x) {
        member_.wait();
        if (out_norm.kind == NONE) {
            multiply_by(matrix, x.data(), space_.states.data(), space_.states.data());
        } else {
            multiply_by(matrix, x.data(), space_.normed.data(), nullptr);
            member_.wait();
            for (int64_t i = first_; i < last_; i++) {
                float* y = space_.normed.data() + i * stack_.width;
                normalize(out_norm, y, y);
                for (int64_t k = 0; k < stack_.width; k++) state(i)[k] += y[k];
            }
        }
        leave(norm);
    }

    const Stack& stack_;
    const Tokens& tokens_;
    Workspace& space_;
    Member& member_;
    int64_t first_, last_;
    std::vector<Row> rows_;
    std::vector<float> room_;
};

template <class Number>
Number* at_least(std::vector<Number>& numbers, int64_t n) {
    if (static_cast<int64_t>(numbers.size()) < n) numbers.resize(n);
    return numbers.data();
}

void make_room(int64_t rows, int64_t width, Workspace& space) {
    at_least(space.scale, rows * groups(width)), at_least(space.offsets, rows * groups(width));
    at_least(space.numbers, rows * groups(width) * GROUP);
}

void make_room(const Matrix& matrix, int64_t rows, Workspace& space) {
    make_room(rows, matrix.n_in, space);
}

void make_room(const Stack& stack, int64_t n, Workspace& space) {
    int64_t projected = 1, mixed = 1, inner = 1, widest = stack.width;
    for (int64_t number = 0; number < stack.n_blocks; number++) {
        const Block& block = stack.blocks[number];
        projected = std::max({projected, block.self.project.n_out, block.cross.project.n_out});
        mixed = std::max({mixed, block.self.heads.mixed(), block.cross.heads.mixed()});
        inner = std::max(inner, block.feed_forward.in.n_out);
    }
    widest = std::max({widest, mixed, inner});
    at_least(space.states, n * stack.width), at_least(space.normed, n * stack.width);
    at_least(space.projected, n * projected), at_least(space.mixed, n * mixed);
    at_least(space.inner, n * inner), at_least(space.gate, n * inner);
    make_room(n, widest, space);
}

int64_t bytes(const Matrix& matrix) { return panels(matrix.n_out) * panel_bytes(matrix.n_in, matrix.bits); }

// The number of threads for which the work of each thread outweighs the waiting. The work is measured in bytes of
// weights, which are read once for a few rows.
int64_t useful(int64_t threads, int64_t bytes, int64_t rows) {
    constexpr int64_t enough = 3 << 20;
    return std::max<int64_t>(1, std::min(threads, bytes * std::max<int64_t>(1, rows / 2) / enough));
}

int64_t useful(int64_t threads, const Stack& stack, int64_t rows) {
    int64_t total = 0;
    for (int64_t number = 0; number < stack.n_blocks; number++) {
        const Block& block = stack.blocks[number];
        const FeedForward& net = block.feed_forward;
        for (const Matrix* matrix : {&block.self.project, &block.self.out, &block.cross.project, &block.cross.out,
                                     &net.in, &net.gate, &net.out})
            total += bytes(*matrix);
    }
    return useful(threads, total, rows);
}

Workspace& workspace() {
    static thread_local Workspace space;
    return space;
}

void run(const Stack& stack, const Embedding& embedding, const Tokens& tokens, Workspace& space, Member& member) {
    if (member.size == 1) make_room(stack, tokens.n, space);  // a larger team has its memory already
    Run run(stack, tokens, space, member);
    run.embed(embedding);
    run.blocks();
}

}  // namespace

extern "C" {

int64_t attendo_panel() { return PANEL; }

// Whether multiplications of matrices with this number of bits are fast on the CPU that this file was compiled for.
int64_t attendo_suits(int64_t bits) {
#if defined(__AVX2__) && defined(__FMA__)
    return bits == 32 || bits == 16 || bits == 8 || bits == 4;
#elif defined(__aarch64__)
    return bits == 32 || bits == 16;
#else
    return bits == 0;
#endif
}

// Requests large pages, if the system supports them, for memory that was not used yet.
void attendo_large_pages(char* from, int64_t bytes) {
#if defined(__linux__)
    madvise(from, bytes / (1 << 21) << 21, MADV_HUGEPAGE);
#else
    (void)from, (void)bytes;
#endif
}

// Returns unused memory to the system, and drops whole pages of a mapped file, which are read again when they are used.
void attendo_release(char* from, int64_t bytes) {
#if defined(__GLIBC__)
    malloc_trim(0);
#endif
#if defined(__linux__) && defined(MADV_PAGEOUT)
    constexpr int64_t page = 4096;
    char* first = from + (page - reinterpret_cast<intptr_t>(from) % page) % page;
    if (from + bytes > first) madvise(first, (from + bytes - first) / page * page, MADV_PAGEOUT);
#else
    (void)from, (void)bytes;
#endif
}

// Returns the bytes of W [n_out][n_in] in panels.
int64_t attendo_packed_bytes(int64_t n_out, int64_t n_in, int64_t bits) {
    return panels(n_out) * panel_bytes(n_in, bits);
}

// Returns the length of the keys and values of a position in the cache, n numbers: in bytes for 8 bits, else in numbers.
int64_t attendo_cache_length(int64_t n, int64_t bits) { return bits == 8 ? length_of<Byte>(n) : n; }

// Quantizes W [n_out][n_in] row by row, to the form that packing.h describes.
void attendo_quantize(
    const float* w, int64_t n_out, int64_t n_in, int64_t bits, uint8_t* numbers, uint8_t* scales, int64_t threads
) {
    const int64_t scale_bytes = bits == 8 ? sizeof(float) : groups(n_in) * sizeof(Bfloat);
    Team::work(threads, [&](Member& member) {
        int64_t first, last;
        member.share(n_out, first, last);
        for (int64_t row = first; row < last; row++)
            quantize_row(w + row * n_in, n_in, bits, numbers + row * row_bytes(n_in, bits), scales + row * scale_bytes);
    });
}

// Packs W [n_out][n_in] into panels: floats, or the numbers and scales of attendo_quantize. In 8 bits, `scale` receives
// the scale of each output.
void attendo_pack(
    const uint8_t* w, const uint8_t* scales, int64_t n_out, int64_t n_in, int64_t bits, uint8_t* packed, float* scale,
    int64_t threads
) {
    const int64_t bytes = bits >= 16 ? n_in * sizeof(float) : row_bytes(n_in, bits);
    const int64_t scale_bytes = bits == 8 ? sizeof(float) : groups(n_in) * sizeof(Bfloat);
    Team::work(threads, [&](Member& member) {
        int64_t from, until;
        member.share(panels(n_out), from, until);
        for (int64_t panel = from; panel < until; panel++) {
            const int64_t first = panel * PANEL, rows = std::min(PANEL, n_out - first);
            const uint8_t* own = w + first * bytes;
            uint8_t* to = packed + panel * panel_bytes(n_in, bits);
            if (bits == 32)
                pack_rows(reinterpret_cast<const float*>(own), rows, n_in, reinterpret_cast<float*>(to));
            else if (bits == 16)
                pack_rows(reinterpret_cast<const float*>(own), rows, n_in, reinterpret_cast<Bfloat*>(to));
            else
                pack_rows(own, scales + first * scale_bytes, rows, n_in, bits, to, scale + first);
        }
    });
}

// out [rows][n_out] = x Wᵀ + b.
void attendo_product(const Matrix* w, const float* x, int64_t rows, float* out, int64_t threads) {
    const auto multiply = [&](int64_t first, int64_t last, Workspace& space, Member& member) {
        const Target to{out + first * w->n_out, w->n_out, nullptr};
        const int64_t mine = last - first;
        if (w->bits > 8) {
            product(member, *w, x + first * w->n_in, mine, to);
            return;
        }
        int64_t from, until;
        member.share(mine, from, until);
        for (int64_t i = from; i < until; i++)
            quantize(*w, x + (first + i) * w->n_in, space.quantized().row(i, w->n_in));
        member.wait();
        product(member, *w, space.quantized(), mine, to);
    };
    if (rows >= ROWS * threads) {  // each thread computes the rows that it also reads in attendo_best
        Team::work(threads, [&](Member& member) {
            int64_t first, last;
            member.share(rows, first, last);
            Member alone(0, 1, nullptr);
            make_room(*w, last - first, workspace());
            multiply(first, last, workspace(), alone);
        });
        return;
    }
    Workspace& space = workspace();
    make_room(*w, rows, space);
    Team::work(useful(threads, bytes(*w), rows), [&](Member& member) { multiply(0, rows, space, member); });
}

// Computes the states of the tokens after the last block, [n][width]. If there are many tokens and none needs another,
// they are divided among the threads, which then need not wait for each other. Returns the index of the first invalid
// token id, or -1.
int64_t attendo_states(
    const Stack* stack, const Embedding* embedding, const Tokens* tokens, float* states, int64_t threads
) {
    for (int64_t i = 0; i < tokens->n; i++)
        if (tokens->ids[i] < 0 || tokens->ids[i] >= embedding->n) return i;
    if (tokens->apart && tokens->n >= 3 * threads) {
        Team::work(threads, [&](Member& member) {
            int64_t first, last;
            member.share(tokens->n, first, last);
            Tokens mine = *tokens;
            mine.n = last - first;
            mine.ids += first, mine.positions += first, mine.rows += first;
            Member alone(0, 1, nullptr);
            run(*stack, *embedding, mine, workspace(), alone);
            std::memcpy(states + first * stack->width, workspace().states.data(), sizeof(float) * mine.n * stack->width);
        });
        return -1;
    }
    Workspace& space = workspace();
    make_room(*stack, tokens->n, space);
    Team::work(useful(threads, *stack, tokens->n), [&](Member& member) { run(*stack, *embedding, *tokens, space, member); });
    std::memcpy(states, space.states.data(), sizeof(float) * tokens->n * stack->width);
    return -1;
}

// Computes log Σ e^logit of each row.
void attendo_log_sums(const float* logits, int64_t rows, int64_t vocab, double* sums, int64_t threads) {
    Team::work(rows >= ROWS * threads ? threads : 1, [&](Member& member) {
        int64_t first, last;
        member.share(rows, first, last);
        for (int64_t row = first; row < last; row++) sums[row] = log_sum(logits + row * vocab, vocab);
    });
}

// Finds the k best tokens of each row of logits, as in candidates.h. `sums` is the result of attendo_log_sums.
void attendo_best(
    const float* logits, const double* sums, int64_t rows, int64_t vocab, int64_t k, const int64_t* never,
    int64_t n_never, int64_t* tokens, double* log_probs, int64_t threads
) {
    Team::work(rows >= ROWS * threads ? threads : 1, [&](Member& member) {
        int64_t first, last;
        member.share(rows, first, last);
        for (int64_t row = first; row < last; row++)
            best(logits + row * vocab, sums[row], vocab, k, never, n_never, tokens + row * k, log_probs + row * k);
    });
}

}  // extern "C"
