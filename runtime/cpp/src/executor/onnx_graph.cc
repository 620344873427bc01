#include "executor/onnx_graph.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <stdexcept>
#include <utility>

#include "base/platform.h"

namespace translate_trt::runtime {

namespace {

constexpr std::align_val_t kLine{64};  // a cache line

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

// The fields of a message in the encoding of Protocol Buffers.
class Message {
 public:
  explicit Message(std::string_view bytes) : left_(bytes) {}

  // Reads the next field. Returns whether there is one.
  bool next() {
    if (left_.empty()) return false;
    const std::uint64_t key = varint();
    field_ = key >> 3;
    wire_ = key & 7;
    switch (wire_) {
      case 0:
        value_ = varint();
        break;
      case 1:
        bytes_ = take(8);
        break;
      case 2:
        bytes_ = take(varint());
        break;
      case 5:
        bytes_ = take(4);
        break;
      default:
        fail("it is not in the format of ONNX");
    }
    return true;
  }

  std::uint64_t field() const { return field_; }

  std::int64_t integer() const {
    expect(0);
    return static_cast<std::int64_t>(value_);
  }
  std::string_view bytes() const {
    expect(2);
    return bytes_;
  }
  std::string text() const { return std::string(bytes()); }
  float number() const {
    expect(5);
    float value = 0;
    std::memcpy(&value, bytes_.data(), sizeof value);
    return value;
  }

  // Appends the integers of a repeated field, which is packed or not.
  void append(std::vector<std::int64_t>& values) const {
    if (wire_ == 0) {
      values.push_back(integer());
      return;
    }
    Message packed(bytes());
    while (!packed.left_.empty()) values.push_back(static_cast<std::int64_t>(packed.varint()));
  }

 private:
  std::string_view take(std::uint64_t count) {
    if (count > left_.size()) fail("it ends too early");
    const auto taken = left_.substr(0, count);
    left_.remove_prefix(count);
    return taken;
  }

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<std::uint64_t>(byte & 127) << shift;
      if (byte < 128) return value;
    }
    fail("it is not in the format of ONNX");
  }

  void expect(std::uint64_t wire) const {
    if (wire_ != wire) fail("it is not in the format of ONNX");
  }

  std::string_view left_, bytes_;
  std::uint64_t field_ = 0, wire_ = 0, value_ = 0;
};

Shape shape_of(const std::vector<std::int64_t>& sizes) {
  Shape shape;
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) {
    if (size < 0 || __builtin_mul_overflow(count, size, &count) ||
        count > std::numeric_limits<std::int64_t>::max() / 8) {
      fail("a tensor has the size " + std::to_string(size));
    }
    shape.push_back(size);
  }
  return shape;
}

// TensorProto.
void read_tensor(std::string_view bytes, OnnxGraph& graph, ConstantPool& pool) {
  std::vector<std::int64_t> sizes, integers;
  std::string name;
  std::string_view data;
  NodeTensor tensor;
  bool is_external = false;
  for (Message message(bytes); message.next();) {
    switch (message.field()) {
      case 1:
        message.append(sizes);
        break;
      case 2:
        tensor.type = static_cast<Element>(message.integer());
        break;
      case 4:  // float_data, packed
        data = message.bytes();
        break;
      case 7:  // int64_data
        message.append(integers);
        break;
      case 8:
        name = message.text();
        break;
      case 9:
        data = message.bytes();
        break;
      case 14:
        is_external = message.integer() != 0;
        break;
      default:
        break;
    }
  }
  if (is_external) throw NotRunnable("the tensor " + name + " is in another file");
  if (element_size(tensor.type) == 0 || sizes.size() > Shape::kMaxAxes) {
    throw NotRunnable("the tensor " + name + " has an unknown type or many axes");
  }
  tensor.shape = shape_of(sizes);
  if (!integers.empty()) {
    data = {reinterpret_cast<const char*>(integers.data()), integers.size() * sizeof integers[0]};
  }
  if (data.size() != tensor.shape.count() * element_size(tensor.type)) {
    fail("the tensor " + name + " has " + std::to_string(data.size()) + " bytes");
  }
  tensor.data = pool.keep(data);
  graph.constants[name] = tensor;
}

// AttributeProto.
OnnxAttribute read_attribute(std::string_view bytes) {
  OnnxAttribute attribute;
  for (Message message(bytes); message.next();) {
    switch (message.field()) {
      case 1:
        attribute.name = message.text();
        break;
      case 2:
        attribute.number = message.number();
        break;
      case 3:
      case 8:
        message.append(attribute.integers);
        break;
      default:
        break;
    }
  }
  return attribute;
}

// NodeProto.
OnnxNode read_node(std::string_view bytes) {
  OnnxNode node;
  for (Message message(bytes); message.next();) {
    switch (message.field()) {
      case 1:
        node.inputs.push_back(message.text());
        break;
      case 2:
        node.outputs.push_back(message.text());
        break;
      case 4:
        node.name = message.text();
        break;
      case 5:
        node.attributes.push_back(read_attribute(message.bytes()));
        break;
      case 7:
        node.domain = message.text();
        break;
      default:
        break;
    }
  }
  return node;
}

// The fields of a message that has one message of interest, by its number.
std::string_view field_of(std::string_view bytes, std::uint64_t field) {
  std::string_view found;
  for (Message message(bytes); message.next();) {
    if (message.field() == field) found = message.bytes();
  }
  return found;
}

// ValueInfoProto: a name and, in type.tensor_type.elem_type, the type of the elements.
std::pair<std::string, Element> read_value(std::string_view bytes) {
  std::pair<std::string, Element> value(field_of(bytes, 1), Element::kFloat);
  for (Message tensor(field_of(field_of(bytes, 2), 1)); tensor.next();) {
    if (tensor.field() == 1) value.second = static_cast<Element>(tensor.integer());
  }
  return value;
}

OnnxGraph read_graph(std::string_view bytes, ConstantPool& pool) {
  OnnxGraph graph;
  for (Message message(bytes); message.next();) {
    switch (message.field()) {
      case 1:
        graph.nodes.push_back(read_node(message.bytes()));
        break;
      case 5:
        read_tensor(message.bytes(), graph, pool);
        break;
      case 11:
        graph.inputs.insert(read_value(message.bytes()));
        break;
      case 12:
        graph.outputs.insert(read_value(message.bytes()));
        break;
      default:
        break;
    }
  }
  return graph;
}

}  // namespace

void FreeMemory::operator()(std::byte* data) const { ::operator delete(data, kLine); }

AlignedMemory allocate_aligned(std::size_t bytes) {
  return AlignedMemory(static_cast<std::byte*>(::operator new(bytes, kLine)));
}

void* ConstantPool::keep(std::string_view bytes) {
  const auto [begin, end] = memory_.equal_range(bytes.size());
  for (auto known = begin; known != end; ++known) {
    if (std::equal(bytes.begin(), bytes.end(),
                   reinterpret_cast<const char*>(known->second.get()))) {
      return known->second.get();
    }
  }
  AlignedMemory copy = allocate_aligned(bytes.size());
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(copy.get()));
  return memory_.emplace(bytes.size(), std::move(copy))->second.get();
}

OnnxGraph read_onnx(const std::filesystem::path& path, ConstantPool& pool) {
  const MappedFile file(path);
  return read_graph(field_of(file.bytes(), 7), pool);  // ModelProto.graph
}

}  // namespace translate_trt::runtime
