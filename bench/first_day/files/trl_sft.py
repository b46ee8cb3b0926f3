from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

dataset = load_dataset("trl-lib/Capybara", split="train")
arguments = SFTConfig(
    output_dir="Qwen2.5-0.5B-SFT",
    per_device_train_batch_size=2,
    gradient_accumulation_steps=8,
    learning_rate=2e-5,
    num_train_epochs=1,
    max_length=1024,
    packing=True,
    bf16=True,
)
trainer = SFTTrainer(model="Qwen/Qwen2.5-0.5B", args=arguments, train_dataset=dataset)
trainer.train()
