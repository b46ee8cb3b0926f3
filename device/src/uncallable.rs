//! Methods of the types of a device that a build leaves out.

/// Methods of types without values: the signatures alone, because nothing can call them.
macro_rules! uncallable {
    ($($(#[$meta:meta])* $name:ident $(<$life:lifetime>)? { $(
        $(#[$doc:meta])*
        $vis:vis fn $method:ident $(<$($generic:tt $(: $bound:ident)?),+>)? ($($arguments:tt)*) $(-> $result:ty)?;
    )* })*) => {
        $($(#[$meta])* impl $(<$life>)? $name $(<$life>)? { $(
            $(#[$doc])*
            $vis fn $method $(<$($generic $(: $bound)?),+>)? ($($arguments)*) $(-> $result)? {
                unreachable!("the type has no values")
            }
        )* })*
    };
}
pub(crate) use uncallable;
