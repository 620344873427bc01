// Top-k log-probabilities of every row, fused with the vocabulary matmul so that logits are not
// stored.

#include "topk.h"

namespace translate_trt::TRANSLATE_TRT_SIMD {
namespace {

constexpr std::size_t kMaxParts = 8;
// Number of rows above which a task processes two parts with one shared list.
constexpr std::size_t kManyRows = 17;

// A single logit, bitwise equal to the one of the full matmul.
float logit(const Rows8& x, const Matrix8& matrix, const float* bias, std::size_t row,
            std::size_t column) {
  const auto block = column / kLanes, lane = column % kLanes;
  const auto* w = matrix.weights + block * matrix.inputs * kLanes + lane * 4;
  std::int32_t sum = -x.zero * matrix.column_sums[column];
  for (std::size_t k = 0; k < matrix.inputs; ++k) {
    sum += activation(x, row, k, matrix.inputs) * w[k / 4 * 64 + k % 4];
  }
  return multiply_add(static_cast<float>(sum) * matrix.scales[column], x.scales[row], bias[column]);
}

// Lower bounds of the `count` best logits of each row, which finished tasks share with later ones:
// smaller logits need not be inserted. The order of tasks affects which other entries lists
// contain, but never the best ones.
class Bounds {
 public:
  Bounds(std::size_t rows, Arena& arena) : rows_(rows), all_(allocate<float>(arena, rows)) {
    std::fill_n(all_, rows, kNothing);
  }

  // Initializes a task's lists with entries just below the bounds.
  void begin(TopKState* states, std::size_t count) const {
    for (std::size_t row = 0; row < rows_; ++row) {
      float bound;
      __atomic_load(all_ + row, &bound, __ATOMIC_RELAXED);
      std::fill_n(states[row].list, count, Entry{std::nextafter(bound, kNothing), 0});
    }
  }

  void end(const TopKState* states, std::size_t count) {
    for (std::size_t row = 0; row < rows_; ++row) {
      float bound, last = states[row].list[count - 1].value;
      __atomic_load(all_ + row, &bound, __ATOMIC_RELAXED);
      // If two tasks end at the same time, either bound is valid.
      if (last > bound) __atomic_store(all_ + row, &last, __ATOMIC_RELAXED);
    }
  }

 private:
  std::size_t rows_;
  float* all_;
};

// Scales and bias of a panel.
struct Panel {
  std::size_t column;  // its first one
  Ints offsets[kPanel];
  Floats scales[kPanel], bias[kPanel];

  void read(const Rows8& x, const Matrix8& matrix, const float* all_bias, std::size_t block) {
    column = block * kLanes;
    for (std::size_t j = 0; j < kPanel; ++j) {
      const auto begin = column + j * kLanes;
      // Columns beyond the matrix are padding of its last block.
      const auto lanes = first_lanes(remaining(matrix.outputs, begin));
      scales[j] = load(matrix.scales + begin, lanes);
      bias[j] = load(all_bias + begin, lanes, broadcast(kNothing));
      offsets[j] = block + j < matrix.blocks ? zero_sums(x, matrix, block + j) : zero_ints();
    }
  }
};

// Updates the states of a tile's rows. A part has a few rows.
struct TopKEpilogue {
  static constexpr std::size_t kRows = 2;  // of a part

  const Panel* panel;
  const float* row_scales;
  TopKState* states;
  std::size_t count, height;

  std::size_t parts() const { return ceiling(height, kRows); }

  void run(std::size_t part, const Sums& sums) const {
    const auto end = std::min(height, (part + 1) * kRows);
    for (auto i = part * kRows; i < end; ++i) {
      const Floats scale = broadcast(row_scales[i]);
      Floats logits[kPanel];
      for (std::size_t j = 0; j < kPanel; ++j) {
        const Floats scaled = to_floats(subtract(sums[i][j], panel->offsets[j])) * panel->scales[j];
        logits[j] = multiply_add(scaled, scale, panel->bias[j]);
      }
      update(states[i], count, logits, panel->column);
    }
  }
};

}  // namespace

TopKStates make_topk_states(std::size_t parts, std::size_t shared, std::size_t rows,
                            std::size_t count, Arena& arena) {
  const auto lists = ceiling(parts, shared) * rows;
  auto* list = allocate<Entry>(arena, lists * count);
  std::fill_n(list, lists * count, Entry{kNothing, 0});
  auto* all = allocate<TopKState>(arena, parts * rows);
  for (std::size_t i = 0; i < parts * rows; ++i) {
    const auto part = i / rows, row = i % rows;
    all[i] = {zeros(), kNothing, list + (part / shared * rows + row) * count};
  }
  return {all, parts, rows};
}

TopKStates matmul_topk(const Rows8& x, const Matrix8& matrix, const float* bias, std::size_t count,
                       Executor& executor, Arena& arena) {
  const auto& kernel = *x.kernel;
  const auto panels = ceiling(matrix.blocks, kPanel);
  const auto parts = std::min(panels, kMaxParts);
  const auto shared = x.count < kManyRows ? 1 : std::min<std::size_t>(parts, 2);
  const auto states = make_topk_states(parts, shared, x.count, count, arena);
  Bounds bounds(x.count, arena);
  const auto run_part = [&](TilePipeline<TopKEpilogue>& pipeline, std::size_t part) {
    auto* mine = states.all + part * x.count;
    Panel read[2];  // the epilogue of a panel's last tile may run during the next panel
    for (auto i = part * panels / parts; i < (part + 1) * panels / parts; ++i) {
      const auto block = i * kPanel, last = std::min(matrix.blocks, block + kPanel);
      auto& panel = read[i % 2];
      panel.read(x, matrix, bias, block);
      for (std::size_t row = 0; row < x.count; row += kernel.rows) {
        const auto height = std::min(kernel.rows, x.count - row);
        const auto prefetch = next_panel_prefetch(kernel, matrix, last, row, x.count);
        pipeline.add(x, matrix, row, height, block, last, prefetch,
                     {&panel, x.scales + row, mine + row, count, height});
      }
    }
    pipeline.flush();
  };
  const auto tasks = ceiling(parts, shared);
  for_tiles<TopKEpilogue>(kernel, tasks, executor, [&](auto& pipeline, std::size_t task) {
    auto* first = states.all + task * shared * x.count;
    bounds.begin(first, count);
    for (auto part = task * shared; part < std::min(parts, (task + 1) * shared); ++part) {
      run_part(pipeline, part);
    }
    bounds.end(first, count);
  });
  return states;
}

void candidates8(const GemmKernel& best, const Matrix8& matrix, const float* bias,
                 const float* input, std::size_t rows, const Candidates& out, Executor& executor) {
  const Workspace workspace(executor.workspaces());
  const auto x = quantize(input, rows, matrix.inputs, false, best, executor, workspace.arena);
  const auto states = matmul_topk(x, matrix, bias, out.count, executor, workspace.arena);
  for (std::size_t row = 0; row < x.count; ++row) {
    const float log_sum = states.merged(row, out.count);
    for (auto copy = x.begins[row]; copy < x.begins[row + 1]; ++copy) {
      write(states.all[row], log_sum, copy, out);
      for (auto i = copy * out.lookups; i < (copy + 1) * out.lookups; ++i) {
        const auto column = static_cast<std::size_t>(out.columns[i]);
        out.at_columns[i] = logit(x, matrix, bias, row, column) - log_sum;
      }
    }
  }
}

void top_logits(const float* logits, std::size_t rows, std::size_t columns, const Candidates& out,
                Executor& executor) {
  const Workspace workspace(executor.workspaces());
  const auto states = make_topk_states(1, 1, rows, out.count, workspace.arena);
  parallel_for(executor, rows, [&](std::size_t row) {
    const auto* here = logits + row * columns;
    const float log_sum = update_all(states.all[row], out.count, here, columns);
    write(states.all[row], log_sum, row, out);
    for (auto i = row * out.lookups; i < (row + 1) * out.lookups; ++i) {
      out.at_columns[i] = here[out.columns[i]] - log_sum;
    }
  });
}

}  // namespace translate_trt::TRANSLATE_TRT_SIMD
