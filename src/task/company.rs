//! Whether it pays to let other tasks go first.
//!
//! Who has a line for a file or a pipe may let other tasks run once, so that those that are ready add
//! theirs and all share one system call. A busy gateway gains by that, and nobody waits for what may
//! come later; where nobody adds anything it costs more than it saves. So tasks wait for company
//! while there is enough of it, and now and then to see whether that has changed.

/// Of so many batches one waits although hardly any had company lately.
const TRY_EVERY: usize = 16;

/// So many batches wait after one that had company: it pays when one in four has.
const WAITS_EARNED: usize = 4;

/// Most batches that wait in vain until none does.
const WAITS_MAX: usize = 16;

/// What is known of the batches of one place.
#[derive(Debug, Default)]
pub(crate) struct Company {
    /// How many batches there were.
    batches: usize,
    /// How many further ones wait.
    waits: usize,
}

impl Company {
    /// Whether the next batch should wait.
    pub(crate) fn is_likely(&self) -> bool {
        self.waits > 0 || self.batches.is_multiple_of(TRY_EVERY)
    }

    /// Notes a batch of so many.
    pub(crate) fn came(&mut self, count: usize) {
        self.batches = self.batches.wrapping_add(1);
        self.waits = match count {
            0 | 1 => self.waits.saturating_sub(1),
            _ => (self.waits + WAITS_EARNED).min(WAITS_MAX),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_wait_while_enough_have_company() {
        let mut company = Company::default();
        assert_eq!(waits(&mut company, &[1; 3 * TRY]), [0, TRY, 2 * TRY]);
        let others_once = waits(&mut company, &[1, 2, 1, 1, 1, 1, 1]);
        assert_eq!(others_once, [0, 2, 3, 4, 5], "0 is a try, 1 had company");
        let mut company = Company::default();
        let often = [vec![2; TRY], vec![1; TRY]].concat();
        assert_eq!(waits(&mut company, &often).len(), 2 * TRY);
        assert_eq!(waits(&mut company, &[1; TRY]), [0], "a try");

        let of_four = [2, 1, 1, 1].repeat(TRY);
        assert_eq!(waits(&mut company, &of_four).len(), of_four.len());
        let of_six = [2, 1, 1, 1, 1, 1].repeat(TRY);
        assert!(waits(&mut company, &of_six).len() < of_six.len());
    }

    const TRY: usize = TRY_EVERY;

    /// Which of the batches of so many wait.
    fn waits(company: &mut Company, batches: &[usize]) -> Vec<usize> {
        let mut waits = |count: &usize| {
            let waits = company.is_likely();
            company.came(*count);
            waits
        };
        let numbers = 0..batches.len();
        numbers.filter(|number| waits(&batches[*number])).collect()
    }
}
