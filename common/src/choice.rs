//! Settings that are one of a few words.

/// A setting that is one of a few words.
///
/// [`choice!`](crate::choice) defines such a type. Variants, words and their form in files then come from one list.
pub trait Choice: Copy + Eq + 'static {
    /// Every value.
    const ALL: &'static [Self];

    /// The words that users write, in the order of [`Choice::ALL`].
    const WORDS: &'static [&'static str];

    /// The word that users write for this value.
    fn word(self) -> &'static str;

    /// The value of a word. `None` for an unknown word.
    fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|value| value.word() == word)
    }
}

/// Defines a [`Choice`]: an enum with a word for each variant. `serde` reads and writes the word, `Display` prints it. The
/// calling crate depends on `serde`.
#[macro_export]
macro_rules! choice {
    ($(#[$about:meta])* pub enum $name:ident { $($(#[$meaning:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, ::serde::Serialize, ::serde::Deserialize)]
        pub enum $name {
            $($(#[$meaning])* #[serde(rename = $word)] $variant,)*
        }

        impl $crate::Choice for $name {
            const ALL: &'static [$name] = &[$($name::$variant),*];
            const WORDS: &'static [&'static str] = &[$($word),*];

            fn word(self) -> &'static str {
                match self {
                    $($name::$variant => $word,)*
                }
            }
        }

        $crate::show_choice!($name);
    };
}

/// Makes `Display` print the word of a [`Choice`].
#[macro_export]
macro_rules! show_choice {
    ($name:ty) => {
        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str($crate::Choice::word(*self))
            }
        }
    };
}

/// Makes `Display` print the word of a [`Choice`] that [`choice!`](crate::choice) does not define, and `serde` read and
/// write it. The calling crate depends on `serde`.
#[macro_export]
macro_rules! choice_as_word {
    ($name:ty) => {
        $crate::show_choice!($name);

        impl ::serde::Serialize for $name {
            fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> ::std::result::Result<S::Ok, S::Error> {
                serializer.serialize_str($crate::Choice::word(*self))
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $name {
            fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> ::std::result::Result<$name, D::Error> {
                let word = <::std::string::String as ::serde::Deserialize>::deserialize(deserializer)?;
                let known = <$name as $crate::Choice>::WORDS;
                <$name as $crate::Choice>::from_word(&word)
                    .ok_or_else(|| ::serde::de::Error::unknown_variant(&word, known))
            }
        }
    };
}
