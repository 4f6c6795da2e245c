//! Timing of a batch of block requests: the host does the work when the requests are submitted, and each request is reported as complete
//! when the drive would have completed it.

use tandemfs_device::{BlockRequest, DeviceError};

use crate::timing::Time;

/// Does a batch as [`tandemfs_device::BlockPath::transfer_each`] says. `perform` does a request on the host and says when the drive would
/// have done it; without `time` that is now.
pub(crate) fn transfer(
    requests: &mut [BlockRequest<'_>],
    time: Option<&Time>,
    meanwhile: &mut dyn FnMut(),
    completed: &mut dyn FnMut(usize, &BlockRequest<'_>),
    perform: &mut dyn FnMut(&mut BlockRequest<'_>) -> Result<u64, DeviceError>,
) -> Result<(), DeviceError> {
    // As on a drive, a failed request does not stop the other requests of its batch.
    let mut result = Ok(());
    let Some(time) = time else {
        meanwhile();
        for (index, request) in requests.iter_mut().enumerate() {
            // Report it now, while its bytes are in the CPU's caches.
            match perform(request) {
                Ok(_) => completed(index, request),
                Err(error) => result = result.and(Err(error)),
            }
        }
        return result;
    };
    let mut order = Vec::with_capacity(requests.len());
    for (index, request) in requests.iter_mut().enumerate() {
        match perform(request) {
            Ok(done) => order.push((done, index)),
            Err(error) => result = result.and(Err(error)),
        }
    }
    order.sort_unstable();
    meanwhile();
    for (done, index) in order {
        time.wait_until(done);
        completed(index, &requests[index]);
    }
    result
}
