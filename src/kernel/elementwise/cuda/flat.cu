// fill, convert and add.
#include "kernel/elementwise/cuda/flat.cuh"

#include "kernel/elementwise/cuda/operations.hpp"

namespace rotunda::cuda {
namespace {

template <class T, int V>
struct Fill {
  struct Loaded {};
  T* to;
  T value;

  template <class Index>
  __device__ Loaded load(const Index (&)[1]) const {
    return {};
  }
  template <class Index>
  __device__ void store(const Index (&offset)[1], const Loaded&) const {
    Vector<T, V> vector;
#pragma unroll
    for (T& element : vector.at) element = value;
    store_vector(vector, to + offset[0]);
  }
};

template <class From, class To, int V>
struct Convert {
  using Loaded = Vector<From, V>;
  const From* from;
  To* to;

  template <class Index>
  __device__ Loaded load(const Index (&offset)[2]) const {
    return load_vector<V>(from + offset[0]);
  }
  template <class Index>
  __device__ void store(const Index (&offset)[2], const Loaded& loaded) const {
    if constexpr (std::is_same_v<From, To>) {
      store_vector(loaded, to + offset[1]);
    } else {
      Vector<To, V> vector;
#pragma unroll
      for (int i = 0; i < V; ++i) vector.at[i] = narrow<To>(widen(loaded.at[i]));
      store_vector(vector, to + offset[1]);
    }
  }
};

template <class From, int V>
struct Add {
  struct Loaded {
    Vector<From, V> from;
    Vector<float, V> to;
  };
  const From* from;
  float* to;

  template <class Index>
  __device__ Loaded load(const Index (&offset)[2]) const {
    return {load_vector<V>(from + offset[0]), load_vector<V>(to + offset[1])};
  }
  template <class Index>
  __device__ void store(const Index (&offset)[2], Loaded loaded) const {
#pragma unroll
    for (int i = 0; i < V; ++i) loaded.to.at[i] += widen(loaded.from.at[i]);
    store_vector(loaded.to, to + offset[1]);
  }
};

template <class From, int V>
struct AddExactly {
  struct Loaded {
    Vector<From, V> from;
    Vector<float, V> low, to;
  };
  const From* from;
  float* low;
  float* to;

  template <class Index>
  __device__ Loaded load(const Index (&offset)[3]) const {
    return {load_vector<V>(from + offset[0]), load_vector<V>(low + offset[1]), load_vector<V>(to + offset[2])};
  }
  template <class Index>
  __device__ void store(const Index (&offset)[3], Loaded loaded) const {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      // The intrinsics keep the compiler from reordering or fusing.
      const float a = loaded.to.at[i], b = widen(loaded.from.at[i]);
      const float sum = __fadd_rn(a, b);
      const float b_in_sum = __fsub_rn(sum, a);
      const float lost = __fadd_rn(__fsub_rn(a, __fsub_rn(sum, b_in_sum)), __fsub_rn(b, b_in_sum));
      loaded.low.at[i] = __fadd_rn(loaded.low.at[i], lost);
      loaded.to.at[i] = sum;
    }
    store_vector(loaded.low, low + offset[1]);
    store_vector(loaded.to, to + offset[2]);
  }
};

template <class T>
T* pointer(const TensorView& view) {
  return static_cast<T*>(view.data);
}

template <class From, class To>
void convert_as(const TensorView& from, const TensorView& to, IndexWidth width, Stream stream) {
  launch_flat<kVectorOf<From, To>>(std::array{from, to}, width, stream, "convert", [&](auto vector) {
    return Convert<From, To, vector>{pointer<const From>(from), pointer<To>(to)};
  });
}

}  // namespace

void fill(const TensorView& to, float value, IndexWidth width, Stream stream) {
  dispatch_device(to.dtype, [&](auto element) {
    using T = decltype(element);
    launch_flat<kVectorOf<T>>(std::array{to}, width, stream, "fill", [&](auto vector) {
      return Fill<T, vector>{pointer<T>(to), T(value)};
    });
  });
}

void convert(const TensorView& from, const TensorView& to, IndexWidth width, Stream stream) {
  if (from.dtype == to.dtype) {
    if (size_of(to.dtype) == 4) return convert_as<std::uint32_t, std::uint32_t>(from, to, width, stream);
    return convert_as<std::uint16_t, std::uint16_t>(from, to, width, stream);
  }
  dispatch_device(from.dtype, [&](auto source) {
    dispatch_device(to.dtype, [&](auto target) {
      using From = decltype(source);
      using To = decltype(target);
      if constexpr (!std::is_same_v<From, To>) convert_as<From, To>(from, to, width, stream);
    });
  });
}

void add(const TensorView& from, const TensorView& to, const TensorView& low, IndexWidth width, Stream stream) {
  dispatch_device(from.dtype, [&](auto element) {
    using From = decltype(element);
    constexpr int kVector = kVectorOf<From, float>;
    if (low.data == nullptr) {
      launch_flat<kVector>(std::array{from, to}, width, stream, "add", [&](auto vector) {
        return Add<From, vector>{pointer<const From>(from), pointer<float>(to)};
      });
    } else {
      launch_flat<kVector>(std::array{from, low, to}, width, stream, "add", [&](auto vector) {
        return AddExactly<From, vector>{pointer<const From>(from), pointer<float>(low), pointer<float>(to)};
      });
    }
  });
}

}  // namespace rotunda::cuda
