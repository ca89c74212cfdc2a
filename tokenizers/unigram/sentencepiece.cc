// The SentencePiece library behind sentencepiece_internal.h. No exception leaves this file.
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>
#include <string>
#include <unordered_map>
#include <vector>

extern "C" {
#include "core/base/memory_internal.h"
#include "tokenizers/unicode/unicode_internal.h"
#include "tokenizers/unigram/sentencepiece_internal.h"
}

struct mc_sentencepiece {
    sentencepiece::SentencePieceProcessor processor;
};

namespace
{

// Calls `body`, and turns what it throws into a status.
template <typename Body> mc_status guarded(Body body) noexcept
{
    try {
        return body();
    } catch (const std::bad_alloc &) {
        return MC_ERR_NOMEM;
    } catch (...) {
        return MC_ERR_FORMAT;
    }
}

template <typename T> mc_status copy_out(const T *data, size_t count, T **out, size_t *out_count)
{
    *out_count = count;
    *out = static_cast<T *>(mc_malloc(count * sizeof(T)));
    if (!*out) return MC_ERR_NOMEM;
    if (count) std::memcpy(*out, data, count * sizeof(T));
    return MC_OK;
}

// What went wrong, without where in the library's sources it was noticed.
std::string reason_of(const sentencepiece::util::Status &status)
{
    const std::string all = status.ToString();
    const size_t source = all.find(".cc("), end = all.find("] ");
    const bool found = source != std::string::npos && end != std::string::npos;
    return found && end + 2 < all.size() ? all.substr(end + 2) : all;
}

// Whether the library's normalizer leaves something of a line: it removes control characters, and
// marks without width are spaces to it.
bool has_text(const std::string &line)
{
    const auto *p = reinterpret_cast<const uint8_t *>(line.data()), *end = p + line.size();
    for (uint32_t c; p < end;) {
        p += mc_utf8_decode(p, end, &c);
        const bool blank = (c && c <= ' ') || c == 0x7F || c == 0x8F || c == 0x9F ||
                           (c >= 0x200B && c <= 0x200F) || c == 0x2581 || c == 0xFEFF ||
                           c == MC_UNICODE_REPLACEMENT ||
                           (mc_unicode_get(c).flags & (MC_UNICODE_SPACE | MC_UNICODE_WHITE));
        if (!blank) return true;
    }
    return false;
}

// The lines with text of several files, one after the other. Where there is none, our error names
// the file.
class Lines : public sentencepiece::SentenceIterator
{
  public:
    Lines(const char *const *paths, size_t count) : paths_(paths, paths + count) { open(); }

    bool done() const override { return done_; }
    void Next() override
    {
        do {
            while (!done_ && !std::getline(file_, line_)) {
                if (file_.bad()) failure_ = paths_[at_] + ": cannot be read";
                at_++;
                open();
            }
            number_++;
            if (!line_.empty() && line_.back() == '\r') line_.pop_back();
            if (!done_) check();
        } while (!done_ && !has_text(line_));
    }
    const std::string &value() const override { return line_; }
    // What went wrong; empty: nothing.
    const std::string &failure() const { return failure_; }
    sentencepiece::util::Status status() const override
    {
        using sentencepiece::util::Status;
        if (failure_.empty()) return Status();
        return Status(sentencepiece::util::StatusCode::kNotFound, failure_);
    }

  private:
    // Opens file number at_; the first line is read by the first Next().
    void open()
    {
        file_.close();
        file_.clear();
        number_ = 0;
        done_ = at_ == paths_.size() || !failure_.empty();
        if (done_) return;
        file_.open(paths_[at_], std::ios::binary);
        if (file_) return;
        failure_ = paths_[at_] + ": cannot be read";
        done_ = true;
    }
    // The library would take bytes that are no UTF-8, such as those of a compressed file.
    void check()
    {
        const auto *p = reinterpret_cast<const uint8_t *>(line_.data());
        const uint8_t *bad = mc_utf8_find_invalid(p, p + line_.size());
        if (!bad) return;
        char what[64];
        std::snprintf(what, sizeof what, ":%lld: byte 0x%02x is not valid UTF-8", number_, *bad);
        failure_ = paths_[at_] + what;
        done_ = true;
    }

    std::vector<std::string> paths_;
    std::ifstream file_;
    std::string line_, failure_;
    size_t at_ = 0;
    long long number_ = 0;
    bool done_ = false;
};

} // namespace

extern "C" {

mc_sentencepiece *mc_sentencepiece_new(mc_error *err, const char *path, const void *model,
                                       size_t size)
{
    mc_sentencepiece *library = nullptr;
    std::string why;
    mc_status status = guarded([&] {
        library = new mc_sentencepiece;
        const absl::string_view bytes(static_cast<const char *>(model), size);
        const auto result = library->processor.LoadFromSerializedProto(bytes);
        if (result.ok()) return MC_OK;
        why = reason_of(result);
        return MC_ERR_FORMAT;
    });
    if (!status) return library;
    delete library;
    mc_error_set(err, status, "%s: the SentencePiece library does not read it: %s", path,
                 status == MC_ERR_NOMEM ? "out of memory" : why.c_str());
    return nullptr;
}

void mc_sentencepiece_free(mc_sentencepiece *library) { delete library; }

mc_status mc_sentencepiece_encode(const mc_sentencepiece *library, const char *text, size_t size,
                                  int32_t **ids, size_t *count)
{
    *ids = nullptr;
    *count = 0;
    return guarded([&] {
        std::vector<int> found;
        const auto result = library->processor.Encode(absl::string_view(text, size), &found);
        if (!result.ok()) return MC_ERR_FORMAT;
        return copy_out<int32_t>(found.data(), found.size(), ids, count);
    });
}

mc_status mc_sentencepiece_decode(const mc_sentencepiece *library, const int32_t *ids, size_t count,
                                  char **text, size_t *size)
{
    *text = nullptr;
    *size = 0;
    return guarded([&] {
        std::string found;
        const std::vector<int> all(ids, ids + count);
        if (!library->processor.Decode(all, &found).ok()) return MC_ERR_FORMAT;
        return copy_out<char>(found.data(), found.size(), text, size);
    });
}

mc_status mc_sentencepiece_train(mc_error *err, const char *const *inputs, size_t input_count,
                                 const char *const *options, char **model, size_t *size)
{
    std::string why = "out of memory";
    *model = nullptr;
    *size = 0;
    const mc_status status = guarded([&] {
        std::unordered_map<std::string, std::string> settings;
        for (; *options; options += 2) settings[options[0]] = options[1];
        settings["minloglevel"] = "2";
        sentencepiece::SetRandomGeneratorSeed(1); // what is drawn is the same each time
        Lines lines(inputs, input_count);
        lines.Next();
        if (lines.done() && lines.failure().empty()) {
            why = std::string("no text in ") + inputs[0];
            if (input_count > 1) why += " and the other files";
            return MC_ERR_FORMAT;
        }
        std::string bytes;
        const auto result = sentencepiece::SentencePieceTrainer::Train(settings, &lines, &bytes);
        if (result.ok() && lines.failure().empty())
            return copy_out<char>(bytes.data(), bytes.size(), model, size);
        why = lines.failure().empty() ? reason_of(result) : lines.failure();
        return MC_ERR_FORMAT;
    });
    if (!status) return MC_OK;
    return mc_error_set(err, status, "training a tokenizer: %s", why.c_str());
}
}
