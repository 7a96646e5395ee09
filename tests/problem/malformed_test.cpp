// Wrong problem texts: each gives one sentence that names what is wrong.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "rotunda/problem.hpp"
#include "support/error_test.hpp"

namespace rotunda {
namespace {

struct Malformed {
  std::string text;
  const char* word;  ///< the message holds it
};

/// A dense problem that is right but for `rest`.
std::string dense(const std::string& rest) {
  return "s_q=8 h_q=2 d=64 " + rest;
}
std::string packed(const std::string& rest) {
  return "layout=thd h_q=2 d=64 " + rest;
}
std::string one_slice(const std::string& members) {
  return dense("slices=[{" + members + "}]");
}
std::string slice(const char* batch, const char* q, const char* k, const char* band) {
  return std::string("{\"batch\":") + batch + "," + q + "," + k + ",\"q_pos\":0,\"k_pos\":0," + band + "}";
}
const std::string kQ = R"("q_begin":0,"q_len":4)", kK = R"("k_begin":0,"k_len":4)";
const std::string kOpen = R"("left":null,"right":null)";
const std::string kSlice = slice("0", kQ.c_str(), kK.c_str(), kOpen.c_str());

std::vector<Malformed> syntax() {
  return {
      {"", "empty"},
      {" \n\t ", "empty"},
      {"causal", "'causal' is not KEY=VALUE"},
      {dense("=5"), "'=5' is not KEY=VALUE"},
      {dense("mask = causal"), "'mask' is not KEY=VALUE"},
      {dense("maks=causal"), "maks=causal: unknown key, did you mean mask?"},
      {dense("hkv=1"), "did you mean h_kv?"},
      {dense("windwo=1,1"), "did you mean window?"},
      {dense("determinstic=1"), "did you mean deterministic?"},
      {dense("MASK=causal"), "the keys are dtype, layout, b, s_q"},
      {dense("colour=red"), "colour=red: unknown key"},
      {dense("maks=causal foo=1 dropout=1"), "maks=causal: unknown key, did you mean mask?; foo=1: unknown key"},
      {dense("maks=causal dropout=0.1"), "did you mean mask?; and not supported: dropout=0.1: "},
      {"[1]", "[1]: the JSON is an array, allowed is an object"},
      {dense(std::string(5000, 'x') + "=1"), "xxxxx…=1: unknown key"},
      {dense(std::string("m\0sk=1", 6)), "m?sk=1"},
      {dense("mask=causal mask=causal"), "mask=causal: the key is given twice"},
      {dense("d=64"), "d=64: the key is given twice"},
      {"h_q=2 d=64", "s_q is missing"},
      {"s_q=8 d=64", "h_q is missing"},
      {"s_q=8 h_q=2", "d is missing"},
      {packed(""), "cu_q is missing"},
      {"s_q=eight h_q=2 d=64", "s_q=eight: not an integer"},
      {"s_q=8x h_q=2 d=64", "s_q=8x: not an integer"},
      {"s_q= h_q=2 d=64", "s_q=: not an integer"},
      {"s_q=+8 h_q=2 d=64", "s_q=+8: not an integer"},
      {"s_q=0x8 h_q=2 d=64", "s_q=0x8: not an integer"},
      {"s_q=8.0 h_q=2 d=64", "s_q=8.0: not an integer, allowed is an integer of at least 0"},
      {"s_q=9223372036854775808 h_q=2 d=64", "s_q=9223372036854775808: does not fit 64 bits"},
      {dense("slices=[" + kSlice + "]x"), "a blank is missing after the array, before 'x'"},
      {dense("slices=[\"a\\"), "slices: not valid JSON"},
      {dense("slices=[\"a\\\"]\", 1] h_qq=3"), "h_qq=3: unknown key"},
  };
}

std::vector<Malformed> json() {
  return {
      {"{", "not valid JSON"},
      {"{}", "h_q is missing"},
      {"{} x", "not valid JSON"},
      {R"({"s_q":8,"h_q":2,"d":64,})", "not valid JSON"},
      {R"({"s_q":8,"h_q":2,"d":64)", "not valid JSON"},
      {"{\"s_q\":8,\"h_q\":2,\"d\":64,\"mask\":\"\xff\"}", "not valid JSON"},
      {R"({"s_q":8,"h_q":2,"d":64,"d":64})", "d is given twice"},
      {R"({"s_q":8,"h_q":2,"d":64.0})", "d=64.0: not an integer"},
      {R"({"s_q":8,"h_q":2,"d":"64"})", "d=\"64\": not an integer"},
      {R"({"s_q":8,"h_q":2,"d":[64]})", "d=[64]: not an integer"},
      {R"({"s_q":8,"h_q":2,"d":null})", "d=null: not an integer"},
      {R"({"s_q":8,"h_q":2,"d":true})", "d=true: not an integer"},
      {R"({"s_q":1e400,"h_q":2,"d":64})", "not valid JSON"},
      {R"({"s_q":18446744073709551615,"h_q":2,"d":64})", "s_q=18446744073709551615: does not fit 64 bits"},
      {R"({"s_q":8,"h_q":2,"d":64,"mask":1})", "mask=1: allowed is none, causal or causal_bottom_right"},
      {R"({"s_q":8,"h_q":2,"d":64,"mask":null})", "mask=null"},
      {R"({"s_q":8,"h_q":2,"d":64,"grad":"1"})", "grad=\"1\": allowed is 0 or 1"},
      {R"({"s_q":8,"h_q":2,"d":64,"lens_q":"8"})", "lens_q=\"8\": allowed is"},
      {R"({"s_q":8,"h_q":2,"d":64,"lens_q":[]})", "lens_q=[]"},
      {"s_q=8 h_q=2 d=64 lens_q=", "lens_q=[]"},
      {R"({"s_q":8,"h_q":2,"d":64,"lens_q":[7.5]})", "lens_q[0]=7.5: not an integer, allowed is b lengths"},
      {R"({"layout":"thd","h_q":2,"d":64,"cu_q":[]})", "cu_q=[]"},
      {R"({"layout":"thd","h_q":2,"d":64,"cu_q":[0,4],"used_q":[]})", "used_q=[]"},
      {R"({"s_q":8,"h_q":2,"d":64,"window":[1]})", "window=[1]"},
      {R"({"s_q":8,"h_q":2,"d":64,"window":5})", "window=5"},
      {R"({"s_q":8,"h_q":2,"d":64,"window":[1,"two"]})", "window[1]=\"two\": not an integer, allowed is L,R"},
      {R"({"s_q":8,"h_q":2,"d":64,"wnidow":[1,2]})", "wnidow=[1,2]: unknown key, did you mean window?"},
      {R"({"s_q":8,"h_q":2,"d":64,"slices":[[[[1]]]]})", "nested too deep"},
      {R"({"s_q":8,"h_q":2,"d":64,"slices":{"batch":0}})", "slices={…}"},
  };
}

std::vector<Malformed> values() {
  return {
      {dense("dtype=bf61"), "dtype=bf61: allowed is bf16, fp16 or fp32"},
      {dense("dtype=BF16"), "dtype=BF16"},
      {dense("layout=bsh"), "layout=bsh: allowed is bshd, sbhd, bhsd or thd"},
      {dense("mask=casual"), "mask=casual: allowed is none, causal or causal_bottom_right"},
      {dense("align=center"), "align=center: allowed is top_left or bottom_right"},
      {dense("sink=one"), "sink=one: allowed is none, zero or learnable"},
      {dense("grad=2"), "grad=2: allowed is 0 or 1"},
      {dense("grad=yes"), "grad=yes: allowed is 0 or 1"},
      {dense("max_logit=-1"), "max_logit=-1: allowed is 0 or 1"},
      {dense("deterministic="), "deterministic=: allowed is 0 or 1"},
      {dense("b=-1"), "b=-1: allowed is an integer of at least 0"},
      {"s_q=-8 h_q=2 d=64", "s_q=-8"},
      {dense("s_k=-1"), "s_k=-1"},
      {"s_q=8 h_q=0 d=64", "h_q=0: allowed is an integer of at least 1"},
      {"s_q=8 h_q=4294967297 d=64", "h_q=4294967297"},
      {dense("h_kv=0"), "h_kv=0"},
      {"s_q=8 h_q=28 h_kv=8 d=64", "h_kv=8: does not divide h_q=28"},
      {dense("h_kv=4"), "h_kv=4: does not divide h_q=2"},
      {"s_q=8 h_q=2 d=0", "d=0: allowed is an integer from 1 to 512"},
      {"s_q=8 h_q=2 d=513", "d=513: allowed is an integer from 1 to 512"},
      {dense("d_v=513"), "d_v=513"},
      {dense("window=5"), "window=5: allowed is L,R"},
      {dense("window=1,2,3"), "window=1,2,3"},
      {dense("window=-1,0"), "window=-1,0"},
      {dense("window=0,-9223372036854775808"), "window=0,-9223372036854775808"},
      {dense("window=9223372036854775808,0"), "does not fit 64 bits, allowed is L,R"},
      {dense("window=INF,0"), "window[0]=INF: not an integer"},
      {dense("prefix=-1"), "prefix=-1"},
      {dense("chunk=0"), "chunk=0: allowed is an integer of at least 1"},
      {dense("chunk=-4"), "chunk=-4"},
      {dense("scale=0"), "scale=0: allowed is a finite number above 0"},
      {dense("scale=-0.5"), "scale=-0.5"},
      {dense("scale=nan"), "scale=nan"},
      {dense("scale=inf"), "scale=inf"},
      {dense("scale=1e400"), "scale=1e400"},
      {dense("scale=3.5e38"), "scale=3.5e38: allowed is a finite number above 0, at most 3.4e38"},
      {dense("scale=1/8"), "scale=1/8"},
      {dense("b=4611686018427387904"), "has too many elements, allowed are fewer than 2^62"},
      {"s_q=9223372036854775807 h_q=1 d=1", "q [1, 9223372036854775807, 1, 1] has too many elements"},
      {"s_q=1 s_k=4611686018427387904 h_q=1 d=1", "k [1, 4611686018427387904, 1, 1]"},
      {"s_q=1099511627776 h_q=8192 d=512", "too many elements"},
      {"b=9223372036854775807 s_q=0 h_q=1 d=1", "too many elements"},
      {packed("cu_q=0,9223372036854775807"), "too many elements"},
  };
}

std::vector<Malformed> lists() {
  return {
      {dense("b=2 lens_q=8"), "lens_q=8: 1 lengths for b=2"},
      {dense("lens_q=8,8"), "lens_q=8,8: 2 lengths for b=1"},
      {dense("lens_q=9"), "lens_q[0]=9: a length here is from 0 to 8"},
      {dense("b=3 lens_k=8,2,-1"), "lens_k[2]=-1: a length here"},
      {dense("lens_q=1,,2"), "lens_q[1]=: not an integer"},
      {packed("cu_q=1,5"), "cu_q[0]=1: the first offset is 0"},
      {packed("cu_q=0,5,3"), "cu_q[2]=3: offsets never descend, and the one before is 5"},
      {packed("cu_q=0,-5"), "cu_q[1]=-5: offsets never descend"},
      {packed("cu_q=0,5,"), "cu_q[2]=: not an integer"},
      {packed("cu_q=0,5,seven,9"), "cu_q[2]=seven: not an integer, allowed is ascending offsets"},
      {packed("cu_q=0,5 cu_k=0,5,9"), "cu_k=0,5,9: 3 offsets where cu_q has 2"},
      {packed("cu_q=0,5 cu_k=5,9"), "cu_k[0]=5: the first offset is 0"},
      {packed("cu_q=0,5,9 used_q=5"), "used_q=5: 1 lengths for 2 sequences"},
      {packed("cu_q=0,5,9 used_q=5,5"), "used_q[1]=5: sequence 1 has 4 rows"},
      {packed("cu_q=0,5 used_k=6"), "used_k[0]=6: sequence 0 has 5 rows"},
      {packed("cu_q=0,5 cu_k=0,3 used_q=5 used_k=4"), "used_k[0]=4: sequence 0 has 3 rows"},
      {packed("cu_q=0 used_q=1"), "used_q=1: 1 lengths for 0 sequences"},
  };
}

std::vector<Malformed> contradictions() {
  return {
      {dense("mask=causal_bottom_right align=top_left"), "align=top_left: contradicts mask=causal_bottom_right"},
      {packed("cu_q=0,5 b=1"), "b=1: layout=thd takes the number of sequences from cu_q"},
      {packed("cu_q=0,5 s_q=5"), "s_q=5: layout=thd has its lengths in cu_q and cu_k"},
      {packed("cu_q=0,5 s_k=5"), "s_k=5"},
      {packed("cu_q=0,5 lens_q=5"), "lens_q=5: layout=thd has its visible lengths in used_q"},
      {packed("cu_q=0,5 lens_k=5"), "lens_k=5"},
      {dense("cu_q=0,8"), "cu_q=0,8: only for layout=thd, layout=bshd takes b, s_q"},
      {dense("layout=sbhd cu_k=0,8"), "cu_k=0,8: only for layout=thd, layout=sbhd"},
      {dense("used_q=8"), "used_q=8: only for layout=thd"},
      {dense("used_k=8"), "used_k=8: only for layout=thd"},
      {dense("slices=[] mask=none"), "mask=none: slices say the whole mask"},
      {dense("slices=[] window=1,1"), "window=1,1: slices say the whole mask"},
      {dense("slices=[] align=bottom_right"), "align=bottom_right: slices say"},
      {dense("slices=[] prefix=0"), "prefix=0: slices say"},
      {dense("slices=[] chunk=4"), "chunk=4: slices say"},
      {dense("slices=[] lens_q=8"), "lens_q=8: slices say"},
      {dense("lens_k=8 slices=[]"), "lens_k=8: slices say"},
      {packed("slices=[] used_q=8"), "used_q=8: slices say"},
      {packed("slices=[] used_k=8"), "used_k=8: slices say"},
  };
}

std::vector<Malformed> slice_lists() {
  const auto list = [](const std::string& rest) { return dense("slices=[" + kSlice + "," + rest + "]"); };
  return {
      {dense("slices=mine.json"), "slices=mine.json: allowed is @file.json or a JSON array"},
      {dense("slices=@no_such_file.json"), "slices=@no_such_file.json: there is no such file"},
      {dense("slices=@"), "there is no such file"},
      {dense("slices=@/"), "slices=@/: that is a folder"},
      {dense("slices=[" + kSlice), "slices: not valid JSON"},
      {dense("slices=[1]"), "slices[0]=1: a slice is an object"},
      {dense("slices=[{}]"), "slices[0] has 0 of 9 members"},
      {one_slice(R"("batch":0,)" + kQ + "," + kK + R"(,"q_pos":0,"k_pos":0,"left":null)"), "8 of 9 members"},
      {one_slice(R"("batch":0,"batch":0)"), "batch is given twice"},
      {one_slice(R"("bach":0)"), "slices[0]: bach is unknown"},
      {one_slice(R"("batch":null)"), "slices[0].batch=null: not an integer"},
      {one_slice(R"("left":"inf")"), "slices[0].left=\"inf\": not an integer"},
      {one_slice(R"("q_len":4.5)"), "slices[0].q_len=4.5: not an integer"},
      {one_slice(R"("q_pos":-9223372036854775809)"), "slices[0].q_pos"},
      {list(slice("1", kQ.c_str(), kK.c_str(), kOpen.c_str())), "slices[1]: batch=1: allowed is below b=1"},
      {list(slice("-1", kQ.c_str(), kK.c_str(), kOpen.c_str())), "slices[1]: batch=-1"},
      {packed("slices=[" + slice("1", kQ.c_str(), kK.c_str(), kOpen.c_str()) + "]"), "allowed is 0 in layout=thd"},
      {list(slice("0", R"("q_begin":5,"q_len":4)", kK.c_str(), kOpen.c_str())),
       "q_begin + q_len=9: allowed is at most 8"},
      {list(slice("0", kQ.c_str(), R"("k_begin":-1,"k_len":4)", kOpen.c_str())), "k_begin=-1: allowed is at least 0"},
      {list(slice("0", kQ.c_str(), R"("k_begin":4,"k_len":5)", kOpen.c_str())),
       "k_begin + k_len=9: allowed is at most 8"},
      {list(slice("0", kQ.c_str(), R"("k_begin":9223372036854775807,"k_len":9223372036854775807)", kOpen.c_str())),
       "slices[1]: k_len"},
      {packed("slices=[" +
              slice("0", R"("q_begin":4611686018427387904,"q_len":4611686018427387904)", kK.c_str(), kOpen.c_str()) +
              "]"),
       "slices[0]: q_len"},
      {list(kSlice), "slices[0] {"},
      {list(slice("0", R"("q_begin":3,"q_len":4)", R"("k_begin":3,"k_len":4)", kOpen.c_str())), "overlap"},
      {packed("cu_q=0,3 slices=[" + kSlice + "]"), "q_begin + q_len=4: allowed is at most 3, the query rows"},
      {packed("cu_q=0,4 cu_k=0,3 slices=[" + kSlice + "]"), "k_begin + k_len=4: allowed is at most 3, the key rows"},
      {packed("cu_q=0,4,2 slices=[" + kSlice + "]"), "cu_q[2]=2: offsets never descend"},
  };
}

void expect_all(const std::vector<Malformed>& cases) {
  for (const Malformed& wrong : cases) {
    SCOPED_TRACE(wrong.text.substr(0, 200));
    EXPECT_ERROR((void)parse_problem(wrong.text), ErrorKind::bad_input, wrong.word);
  }
}

TEST(Malformed, Syntax) {
  expect_all(syntax());
}
TEST(Malformed, Json) {
  expect_all(json());
}
TEST(Malformed, Values) {
  expect_all(values());
}
TEST(Malformed, Lists) {
  expect_all(lists());
}
TEST(Malformed, Contradictions) {
  expect_all(contradictions());
}
TEST(Malformed, SliceLists) {
  expect_all(slice_lists());
}

TEST(Malformed, MessagesAreOneShortSentence) {
  for (const auto& cases : {syntax(), json(), values(), lists(), contradictions(), slice_lists()}) {
    for (const Malformed& wrong : cases) {
      try {
        (void)parse_problem(wrong.text);
      } catch (const Error& error) {
        const std::string message = error.what();
        EXPECT_TRUE(message.starts_with("problem: ")) << message;
        EXPECT_EQ(message.find('\n'), std::string::npos) << message;
        EXPECT_LT(message.size(), 500U) << message;
      }
    }
  }
}

TEST(Malformed, SliceFiles) {
  const auto path = std::filesystem::temp_directory_path() / "rotunda_malformed_slices.json";
  const auto parse_file = [&](const std::string& content) {
    std::ofstream(path, std::ios::binary) << content;
    return parse_problem(dense("slices=@" + path.string()));
  };
  EXPECT_EQ(parse_file("[" + kSlice + "]"), parse_problem(dense("slices=[" + kSlice + "]")));
  EXPECT_EQ(parse_problem(R"({"s_q":8,"h_q":2,"d":64,"slices":"@)" + path.string() + "\"}"),
            parse_problem(R"({"s_q":8,"h_q":2,"d":64,"slices":[)" + kSlice + "]}"));
  EXPECT_ERROR((void)parse_file(""), ErrorKind::bad_input, "not valid JSON");
  EXPECT_ERROR((void)parse_file("{}"), ErrorKind::bad_input, "the file holds no JSON array");
  EXPECT_ERROR((void)parse_file("[" + kSlice), ErrorKind::bad_input, path.filename().string());
  const std::string slices = "slices=@" + path.string() + ": slices";  // every message names the file
  EXPECT_ERROR((void)parse_file("[" + kSlice + ",1]"), ErrorKind::bad_input, slices + "[1]=1: a slice is an object");
  EXPECT_ERROR((void)parse_file(R"([{"batch":1.5}])"), ErrorKind::bad_input, slices + "[0].batch=1.5: not an integer");
  EXPECT_ERROR((void)parse_file(R"([{"batch":0}])"), ErrorKind::bad_input, slices + "[0] has 1 of 9 members");
  EXPECT_ERROR((void)parse_file("[" + slice("1", kQ.c_str(), kK.c_str(), kOpen.c_str()) + "]"), ErrorKind::bad_input,
               slices + "[0]: batch=1: allowed is below b=1");
  EXPECT_ERROR((void)parse_file("[" + kSlice + "," + kSlice + "]"), ErrorKind::bad_input, slices + "[0] {");
  std::filesystem::remove(path);
}

TEST(Refused, KeysKnownByNameAreUnsupported) {
  const std::pair<const char*, const char*> cases[] = {
      {"dropout=0.1", "dropout=0.1: attention is exact here"},
      {"dropout=0", "dropout=0"},
      {"bias=1", "bias=1"},
      {"alibi=1", "alibi=1"},
      {"softcap=30", "softcap=30"},
      {"dtype=fp8", "dtype=fp8"},
      {"dtype=fp8_e4m3", "dtype=fp8_e4m3"},
      {"dtype=fp8_e5m2", "dtype=fp8_e5m2"},
      {"block_table=x", "block_table=x"},
      {"block_tables=0,1", "block_tables=0,1"},
  };
  for (const auto& [text, word] : cases) {
    EXPECT_ERROR((void)parse_problem(dense(text)), ErrorKind::unsupported, word);
    EXPECT_ERROR((void)parse_problem(text), ErrorKind::unsupported, word);  // before anything that is missing
  }
  EXPECT_ERROR((void)parse_problem(R"({"s_q":8,"h_q":2,"d":64,"block_table":[[0,1]]})"), ErrorKind::unsupported,
               "block_table");
  EXPECT_ERROR((void)parse_problem(dense("softcap=30 dtype=fp8")), ErrorKind::unsupported, "dtype=fp8: 8-bit");
  EXPECT_ERROR((void)parse_problem(dense("dtype=fp8 softcap=30")), ErrorKind::unsupported, "softcap=30");
  EXPECT_ERROR((void)parse_problem(dense("dropout=0.1 maks=causal")), ErrorKind::bad_input, "maks");
}

}  // namespace
}  // namespace rotunda
