"""Names that the engines know, read in SGLang 0.5.23 and vLLM 0.32.0.

A name in none of these sets is not judged: it may be newer, or the user's own.
"""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


SGLANG_EAGLE3_HOOKS = _names(
    """
    ApertusForCausalLM BailingMoEForCausalLM BailingMoeForCausalLM BailingMoeV2ForCausalLM
    Cosmos3ForConditionalGeneration DeepseekV2ForCausalLM DeepseekV32ForCausalLM DeepseekV3ForCausalLM
    ExaoneMoEForCausalLM ExaoneMoeForCausalLM Gemma3ForCausalLM Gemma3ForConditionalGeneration
    Gemma4ForCausalLM Gemma4ForConditionalGeneration Gemma4UnifiedForConditionalGeneration
    Glm4MoeForCausalLM Glm4MoeLiteForCausalLM Glm5NextForConditionalGeneration GlmMoeDsaForCausalLM
    GptOssForCausalLM IQuestCoderForCausalLM InternLM3ForCausalLM InternS1ProForConditionalGeneration
    InternS2MobiusForConditionalGeneration InternS2PreviewForConditionalGeneration
    KimiK25ForConditionalGeneration Llama4ForCausalLM Llama4ForConditionalGeneration LlamaForCausalLM
    LongcatFlashForCausalLM MellumForCausalLM MindSporeForCausalLM MiniMaxM2ForCausalLM
    MiniMaxM3SparseForCausalLM MiniMaxM3SparseForConditionalGeneration Ministral3ForCausalLM
    MistralForCausalLM MistralLarge3ForCausalLM Phi3ForCausalLM Qwen2ForCausalLM Qwen2MoeForCausalLM
    Qwen2_5_VLForConditionalGeneration Qwen3ForCausalLM Qwen3MoeForCausalLM Qwen3NextForCausalLM
    Qwen3VLForConditionalGeneration Qwen3VLMoeForConditionalGeneration Qwen3_5ForCausalLM
    Qwen3_5ForConditionalGeneration Qwen3_5MoeForCausalLM Qwen3_5MoeForConditionalGeneration
    Qwen4ExpForConditionalGeneration SarvamMoEForCausalLM TeleFLMForCausalLM
    """
)
"""Target classes with ``set_eagle3_layers_to_capture``."""

SGLANG_NO_EAGLE3_HOOKS = _names(
    """
    AfmoeForCausalLM ArceeForCausalLM BaichuanForCausalLM BailingMoeV2_5ForCausalLM BailingMoeV3ForCausalLM
    ChatGLMModel Cohere2ForCausalLM Cohere2MoeForCausalLM CohereForCausalLM DbrxForCausalLM
    DeciLMForCausalLM DeepseekForCausalLM DeepseekV4ForCausalLM DeepseekVL2ForCausalLM
    Ernie4_5_ForCausalLM Ernie4_5_MoeForCausalLM Exaone4ForCausalLM ExaoneForCausalLM FalconH1ForCausalLM
    FalconMambaForCausalLM GPT2LMHeadModel GPTBigCodeForCausalLM GPTJForCausalLM Gemma2ForCausalLM
    Gemma3nForCausalLM Gemma3nForConditionalGeneration GemmaForCausalLM Glm4ForCausalLM
    Glm4vForConditionalGeneration Glm4vMoeForConditionalGeneration GraniteForCausalLM
    GraniteMoeForCausalLM GraniteMoeHybridForCausalLM Grok1ForCausalLM HYV3ForCausalLM
    HunYuanDenseV1ForCausalLM HunYuanMoEV1ForCausalLM IQuestQ1ForCausalLM InternLM2ForCausalLM
    InternS1ForConditionalGeneration InternVLChatModel JetNemotronForCausalLM
    KimiK3ForConditionalGeneration KimiLinearForCausalLM KimiVLForConditionalGeneration
    LagunaForCausalLM Lfm2ForCausalLM Lfm2MoeForCausalLM LlavaForConditionalGeneration
    MiMoForCausalLM MiMoV2FlashForCausalLM MiMoV2ForCausalLM MiniCPM3ForCausalLM MiniCPMForCausalLM
    Mistral3ForConditionalGeneration MixtralForCausalLM MllamaForConditionalGeneration
    NemotronHForCausalLM OPTForCausalLM Olmo2ForCausalLM OlmoForCausalLM OlmoeForCausalLM
    PersimmonForCausalLM Phi4MMForCausalLM PhiForCausalLM PhiMoEForCausalLM
    PixtralForConditionalGeneration QWenLMHeadModel Qwen2VLForConditionalGeneration
    Qwen3OmniMoeForConditionalGeneration SolarForCausalLM StableLmForCausalLM Starcoder2ForCausalLM
    Step3VLForConditionalGeneration Step3p5ForCausalLM XverseForCausalLM
    """
)
"""Target classes it serves without that method: it raises after the target has been loaded."""

VLLM_NO_EAGLE3 = _names(
    """
    BailingMoeForCausalLM BailingMoeV2ForCausalLM BailingMoeV2_5ForCausalLM BailingMoeV3ForCausalLM
    BloomForCausalLM ChatGLMForConditionalGeneration ChatGLMModel Cohere2ForCausalLM CohereForCausalLM
    DbrxForCausalLM DeciLMForCausalLM Ernie4_5_MoeForCausalLM Exaone4ForCausalLM ExaoneForCausalLM
    ExaoneMoEForCausalLM ExaoneMoeForCausalLM FalconForCausalLM FalconH1ForCausalLM
    FalconMambaForCausalLM GPT2LMHeadModel GPTJForCausalLM Gemma2ForCausalLM Gemma3ForCausalLM
    Gemma3nForCausalLM GemmaForCausalLM Glm4ForCausalLM Glm4MoeForCausalLM Glm4MoeLiteForCausalLM
    GraniteMoeForCausalLM GraniteMoeHybridForCausalLM HYV3ForCausalLM InternLM2ForCausalLM
    JambaForCausalLM Lfm2ForCausalLM Lfm2MoeForCausalLM LongcatFlashForCausalLM MambaForCausalLM
    MixtralForCausalLM NemotronForCausalLM OPTForCausalLM OlmoeForCausalLM PhiMoEForCausalLM
    Qwen2MoeForCausalLM SolarForCausalLM StableLmForCausalLM Step3TextForCausalLM Step3p5ForCausalLM
    Zamba2ForCausalLM
    """
)
"""Target classes that do not implement ``SupportsEagle3``."""

SGLANG_EAGLE3_DRAFTS = frozenset({"LlamaForCausalLMEagle3", "Eagle3DeepseekV2ForCausalLM"})
VLLM_EAGLE3_DRAFTS = _names(
    """
    PEagleDraftModel PeagleLlamaForCausalLM PeagleQwen3ForCausalLM Eagle3LlamaForCausalLM
    Eagle3MiniMaxM2ForCausalLM LlamaForCausalLMEagle3 Eagle3Qwen2_5vlForCausalLM
    Eagle3Qwen3vlForCausalLM Eagle3Qwen3ForCausalLM Eagle3DeepseekV2ForCausalLM
    Eagle3DeepseekV3ForCausalLM
    """
)
MLA_EAGLE3_DRAFTS = frozenset({"Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM"})
LLAMA_EAGLE3_DRAFTS = (SGLANG_EAGLE3_DRAFTS | VLLM_EAGLE3_DRAFTS) - MLA_EAGLE3_DRAFTS
"""Drafts whose layer is Llama's with a doubled input to q, k and v."""

SGLANG_MTP_TARGETS = _names(
    """
    DeepseekV32ForCausalLM DeepseekV3ForCausalLM DeepseekV4ForCausalLM Glm4MoeForCausalLM
    Glm4MoeLiteForCausalLM GlmMoeDsaForCausalLM BailingMoeForCausalLM BailingMoeV2ForCausalLM
    BailingMoeV2_5ForCausalLM MistralLarge3ForCausalLM PixtralForConditionalGeneration HYV3ForCausalLM
    HYV4ForCausalLM Qwen4ExpForConditionalGeneration
    """
)
"""Targets whose draft path defaults to their own path."""

SGLANG_AUX_AS_WRITTEN = frozenset(
    {
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DeepseekV32ForCausalLM",
        "KimiK25ForConditionalGeneration",
    }
)
"""Targets whose layer ids are taken as inputs unless the first is 1; all others read them as outputs."""

SGLANG_READ = "SGLang 0.5.23"
VLLM_READ = "vLLM 0.32.0"
