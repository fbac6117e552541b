// A plot of curves as an SVG file: axes with round ticks, a legend, no dependencies.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace sluice::scenario {

struct SvgPoint {
  double x = 0;
  double y = 0;
};

struct SvgCurve {
  std::string name;
  std::vector<SvgPoint> points;  // by rising x
};

struct SvgPlot {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<SvgCurve> curves;
};

// The x axis is logarithmic when its values are positive and span more than a factor of 50.
std::string RenderSvg(const SvgPlot& plot);
Status WriteSvg(const std::string& path, const SvgPlot& plot);

}  // namespace sluice::scenario
