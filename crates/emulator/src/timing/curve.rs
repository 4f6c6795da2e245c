//! Latency by size.

/// Points of a latency curve.
pub(crate) const POINT_COUNT: usize = 6;

/// One measured point of a latency curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatencyPoint {
    /// Size of the access, in bytes.
    pub size_bytes: u32,
    /// What it takes, in nanoseconds.
    pub latency_ns: u32,
}

/// Latency by size: straight lines between the points, flat before the first, the last slope continued behind the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Curve {
    /// In ascending order of both size and latency.
    pub points: [LatencyPoint; POINT_COUNT],
}

impl Curve {
    /// What an access of `size_bytes` takes, in nanoseconds.
    pub fn latency_ns(&self, size_bytes: u64) -> u64 {
        let [first, .., last] = self.points;
        if size_bytes <= u64::from(first.size_bytes) {
            return u64::from(first.latency_ns);
        }
        let segment = self.points.windows(2).find(|pair| size_bytes <= u64::from(pair[1].size_bytes));
        let (from, to) = segment.map_or((self.points[POINT_COUNT - 2], last), |pair| (pair[0], pair[1]));
        let (width, height) = (u64::from(to.size_bytes - from.size_bytes), u64::from(to.latency_ns - from.latency_ns));
        u64::from(from.latency_ns) + (size_bytes - u64::from(from.size_bytes)).saturating_mul(height) / width
    }

    /// Whether sizes and latencies ascend, so that every size has one latency.
    pub(crate) fn is_ascending(&self) -> bool {
        self.points.windows(2).all(|pair| pair[0].size_bytes < pair[1].size_bytes && pair[0].latency_ns <= pair[1].latency_ns)
    }
}
