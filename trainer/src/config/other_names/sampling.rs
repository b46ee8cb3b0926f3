//! Names of the settings of text generation elsewhere: nanoGPT's `sample.py`, and `generate` of Hugging Face.

/// A name, the program that has it, and the flags of `trainer sample`.
const NAMES: &[(&str, &str, &str)] = &[
    ("batch_size", "Hugging Face", "leave it out: texts are made one after the other"),
    ("block_size", "nanoGPT", "leave it out: a checkpoint knows it"),
    ("compile", "nanoGPT", "leave it out"),
    ("do_sample", "Hugging Face", "leave it out; --temperature 0 takes the likeliest token each time"),
    ("dtype", "nanoGPT and Hugging Face", "leave it out: numbers have the format of training"),
    ("init_from", "nanoGPT", "--checkpoint with a folder of checkpoints, or of a Hugging Face model"),
    ("max_length", "Hugging Face", "--tokens, the number of tokens after the prompt"),
    ("max_new_tokens", "nanoGPT and Hugging Face", "--tokens"),
    ("model", "Hugging Face", "--checkpoint with a folder"),
    ("model_name_or_path", "Hugging Face", "--checkpoint with a folder"),
    ("num_beams", "Hugging Face", "leave it out: tokens are drawn, or the likeliest is taken"),
    ("num_return_sequences", "Hugging Face", "--samples"),
    ("num_samples", "nanoGPT", "--samples"),
    ("out_dir", "nanoGPT", "--checkpoint"),
    ("repetition_penalty", "Hugging Face", "leave it out: tokens before do not count"),
    ("start", "nanoGPT", "--prompt, or --prompt-file for a text in a file"),
    ("temperature", "nanoGPT and Hugging Face", "--temperature"),
    ("top_k", "nanoGPT and Hugging Face", "--top-k"),
    ("top_p", "Hugging Face", "--top-p"),
    ("torch_dtype", "Hugging Face", "leave it out: numbers have the format of training"),
];

/// The rule and the fix for a flag that is a setting of text generation elsewhere. Hyphens in `flag` count as underscores.
pub fn sampling(flag: &str) -> Option<(String, String)> {
    let name = flag.replace('-', "_");
    let (_, of, fix) = NAMES.iter().find(|(known, ..)| *known == name)?;
    Some((format!("it is {of}'s name"), (*fix).to_string()))
}
