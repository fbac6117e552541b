#include "tools/scenario/svg.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>

#include "tools/scenario/report.h"

namespace sluice::scenario {
namespace {

constexpr double kWidth = 760;
constexpr double kHeight = 440;
constexpr double kLeft = 70;
constexpr double kRight = 20;
constexpr double kTop = 40;
constexpr double kBottom = 60;
// Legible for the colour-blind (Okabe and Ito).
constexpr const char* kColours[] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"};
constexpr size_t kMaxPoints = 2000;  // per curve: more cannot be seen

std::string Escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string Text(double x, double y, const char* anchor, const std::string& text, const char* more = "") {
  char head[160];
  snprintf(head, sizeof head, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" %s>", x, y, anchor, more);
  return head + Escape(text) + "</text>\n";
}

std::string Line(double x1, double y1, double x2, double y2, const char* colour) {
  char text[160];
  snprintf(text, sizeof text, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n", x1,
           y1, x2, y2, colour);
  return text;
}

// One direction of the plot: data to pixels, and where its ticks are.
class Axis {
 public:
  Axis(double low, double high, bool logarithmic, double from, double to)
      : low_(low), high_(high), logarithmic_(logarithmic), from_(from), to_(to) {
    if (logarithmic_) return;
    if (high_ <= low_) high_ = low_ + 1;
    const double raw = (high_ - low_) / 5;
    const double power = std::pow(10, std::floor(std::log10(raw)));
    step_ = power;
    for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
      step_ = power * factor;
      if (step_ >= raw) break;
    }
    low_ = std::floor(low_ / step_) * step_;
    high_ = std::ceil(high_ / step_) * step_;
  }
  double At(double value) const {
    const double share =
        logarithmic_ ? std::log(value / low_) / std::log(high_ / low_) : (value - low_) / (high_ - low_);
    return from_ + share * (to_ - from_);
  }
  std::vector<double> Ticks() const {
    std::vector<double> ticks;
    if (logarithmic_) {
      const double decades = std::log10(high_ / low_);
      for (double power = std::pow(10, std::floor(std::log10(low_))); power <= high_; power *= 10) {
        for (const double factor : {1.0, 2.0, 5.0}) {
          if (factor > 1 && decades > 3) break;
          const double tick = power * factor;
          if (tick >= low_ * (1 - 1e-9) && tick <= high_ * (1 + 1e-9)) ticks.push_back(tick);
        }
      }
    } else {
      const auto count = static_cast<int>(std::lround((high_ - low_) / step_));
      for (int i = 0; i <= count; ++i) ticks.push_back(low_ + i * step_);
    }
    return ticks;
  }

 private:
  double low_;
  double high_;
  bool logarithmic_;
  double from_;
  double to_;
  double step_ = 1;
};

}  // namespace

std::string RenderSvg(const SvgPlot& plot) {
  double x_low = HUGE_VAL;
  double x_high = -HUGE_VAL;
  double y_low = 0;
  double y_high = -HUGE_VAL;
  for (const SvgCurve& curve : plot.curves) {
    for (const SvgPoint& point : curve.points) {
      x_low = std::min(x_low, point.x);
      x_high = std::max(x_high, point.x);
      y_low = std::min(y_low, point.y);
      y_high = std::max(y_high, point.y);
    }
  }
  if (x_low > x_high) {
    x_low = y_low = 0;
    x_high = y_high = 1;
  }
  const bool logarithmic = x_low > 0 && x_high > 50 * x_low;
  const Axis x(x_low, x_high, logarithmic, kLeft, kWidth - kRight);
  const Axis y(y_low, y_high, false, kHeight - kBottom, kTop);

  char head[240];
  snprintf(head, sizeof head,
           "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\" "
           "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
           kWidth, kHeight);
  std::string out = head;
  out += Text(kWidth / 2, 20, "middle", plot.title);
  for (const double tick : x.Ticks()) {
    out += Line(x.At(tick), kTop, x.At(tick), kHeight - kBottom, "#ddd");
    out += Text(x.At(tick), kHeight - kBottom + 16, "middle", Number(tick));
  }
  for (const double tick : y.Ticks()) {
    out += Line(kLeft, y.At(tick), kWidth - kRight, y.At(tick), "#ddd");
    out += Text(kLeft - 6, y.At(tick) + 4, "end", Number(tick));
  }
  out += Line(kLeft, kHeight - kBottom, kWidth - kRight, kHeight - kBottom, "black");
  out += Line(kLeft, kTop, kLeft, kHeight - kBottom, "black");
  out += Text((kLeft + kWidth - kRight) / 2, kHeight - 12, "middle", plot.x_label);
  char turn[80];
  snprintf(turn, sizeof turn, "transform=\"rotate(-90 18 %.1f)\"", kHeight / 2);
  out += Text(18, kHeight / 2, "middle", plot.y_label, turn);
  for (size_t i = 0; i < plot.curves.size(); ++i) {
    const SvgCurve& curve = plot.curves[i];
    const char* colour = kColours[i % std::size(kColours)];
    out += std::string("<polyline fill=\"none\" stroke-width=\"2\" stroke=\"") + colour + "\" points=\"";
    const size_t stride = std::max<size_t>(1, curve.points.size() / kMaxPoints);
    for (size_t p = 0; p < curve.points.size(); p += stride) {
      char text[64];
      snprintf(text, sizeof text, "%.1f,%.1f ", x.At(curve.points[p].x), y.At(curve.points[p].y));
      out += text;
    }
    out += "\"/>\n";
    const double row = kTop + 16 + 16 * static_cast<double>(i);
    out += Line(kLeft + 10, row - 4, kLeft + 34, row - 4, colour);
    out += Text(kLeft + 40, row, "start", curve.name);
  }
  return out + "</svg>\n";
}

Status WriteSvg(const std::string& path, const SvgPlot& plot) {
  FILE* file = fopen(path.c_str(), "w");
  if (file == nullptr) return SystemError("--plot " + path, errno);
  const std::string text = RenderSvg(plot);
  const bool written = fwrite(text.data(), 1, text.size(), file) == text.size();
  const int error = errno;
  if (fclose(file) != 0 || !written) return SystemError("--plot " + path, written ? errno : error);
  return Status::Ok();
}

}  // namespace sluice::scenario
