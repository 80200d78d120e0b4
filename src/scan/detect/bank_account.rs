//! Numbers of bank accounts that are no IBAN, which only their surroundings tell.

use super::digits::{DigitGroups, Separator};
use crate::scan::{context::name_hints, lexicon::Hints};

/// Digits of the number of an account.
const DIGITS: std::ops::RangeInclusive<usize> = 6..=20;

/// Whether `number` is the number of an account at a bank: something right before it names it as
/// one, or as an account where a bank is near.
pub(super) fn is_bank_account(number: &DigitGroups<'_>) -> bool {
    let grouped = number
        .separators
        .iter()
        .all(|s| matches!(s, Separator::Space | Separator::Dash | Separator::Dot));
    if !DIGITS.contains(&number.digits.len()) || number.plus || number.paren || !grouped {
        return false;
    }
    let strong = number.strong_hints();
    if !number.text.may_name_account(number.span.start) {
        return false;
    }
    // `savings account, balance 1200000`
    let label = number.text.preceding_label(number.span.start);
    let account = Hints::ACCOUNT.union(Hints::BANK_ACCOUNT);
    if label.intersects(Hints::OTHER) && !label.intersects(account) {
        return false;
    }
    let bank = Hints::BANK.union(Hints::BANK_ACCOUNT);
    strong.intersects(Hints::BANK_ACCOUNT)
        || strong.intersects(Hints::ACCOUNT)
            && (number.around().nearby.intersects(bank)
                || name_hints(number.text.names.parent).intersects(bank))
}
