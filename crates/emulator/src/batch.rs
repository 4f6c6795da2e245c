//! A batch of block requests in time: the work is done on the host as the requests are submitted, and each is shown when the drive would
//! have completed it.

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
    // As on a drive, a failed request does not keep the others of its batch from being done.
    let mut result = Ok(());
    let Some(time) = time else {
        meanwhile();
        for (index, request) in requests.iter_mut().enumerate() {
            // Shown now, while its bytes are in the CPU's caches.
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
