//! How fast sectors are taken and freed in an aged zone. A measurement, not a test of limits.
//!
//!     cargo test --profile soak -p tandemfs-fs --lib takes_and_frees_a_second -- --ignored --nocapture

use std::time::{Duration, Instant};

use tandemfs_format::Sector;
use tandemfs_format::geometry::Geometry;

use super::Need;
use super::sectors::SectorAllocator;

const ZONE_BYTES: u64 = 8 << 30;
const BLOCK_SECTORS: u64 = 16;
const ROUNDS: usize = 401;
/// Short enough to have a CPU all the time on a machine that does other work too: the best turns had one.
const TURN: Duration = Duration::from_millis(3);

/// A zone that is nearly full of blocks and of ends of files.
struct Aged {
    sectors: SectorAllocator,
    live: Vec<(Sector, u64)>,
    state: u64,
}

impl Aged {
    fn new(percent: u64, pools: usize) -> Self {
        let geometry = Geometry::new(64 << 20, ZONE_BYTES, 64 << 10, 4, 256 << 10).expect("fits");
        let sectors = SectorAllocator::new(&geometry, pools);
        sectors.fill_room();
        let mut aged = Self { sectors, live: Vec::new(), state: 1 };
        let most = ZONE_BYTES / 4096 * percent / 100;
        let mut taken = 0;
        while taken < most {
            taken += aged.take();
        }
        (0..8 * aged.live.len()).for_each(|_| aged.exchange());
        aged
    }

    fn random(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }

    /// Two blocks, then an end of a file.
    fn take(&mut self) -> u64 {
        let random = self.random();
        let count = if random.is_multiple_of(3) { 1 + random / 3 % (BLOCK_SECTORS - 1) } else { BLOCK_SECTORS };
        self.live.push((self.sectors.take(count, Need::Growth).expect("room"), count));
        count
    }

    fn exchange(&mut self) {
        let which = self.random() as usize % self.live.len();
        let (sector, count) = self.live.swap_remove(which);
        assert!(self.sectors.free(sector, count));
        self.live.push((self.sectors.take(count, Need::Growth).expect("room"), count));
    }
}

#[test]
#[ignore = "a measurement"]
fn takes_and_frees_a_second() {
    for percent in [50, 75, 90] {
        let mut aged = Aged::new(percent, 2);
        let rate = |aged: &mut Aged| {
            let (began, mut count) = (Instant::now(), 0_u64);
            while began.elapsed() < TURN {
                (0..256).for_each(|_| aged.exchange());
                count += 256;
            }
            count as f64 / began.elapsed().as_secs_f64()
        };
        let mut rates: Vec<f64> = (0..ROUNDS).map(|_| rate(&mut aged)).collect();
        rates.sort_unstable_by(f64::total_cmp);
        println!("{percent} % full: {:.0} takes and as many frees a second, {:.0} at best", rates[ROUNDS / 2], rates[ROUNDS - 1]);
    }
}
